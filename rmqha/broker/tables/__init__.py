"""Tables of a broker: topics, groups, offsets, clients, locks, and how slaves follow the master's."""
