"""Commands on stores: log, fsck, epochs, migrate, spark."""
