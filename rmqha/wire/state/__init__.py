"""States of servers as JSON, with one schema for the servers that answer and the clients that read."""
