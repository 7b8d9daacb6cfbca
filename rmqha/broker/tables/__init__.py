"""Tables of a broker: topics, groups, offsets, clients, locks; replication of tables from master to slaves."""
