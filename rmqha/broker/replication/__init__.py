"""Shells of replication: the HA port, the replica's driver, links to controllers and name servers."""
