"""The replication stream: both ends of a connection, its alignment, and who may open one."""
