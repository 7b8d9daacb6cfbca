"""TLS, accounts, the filter of requests by rights, the audit log, files that reload live."""
