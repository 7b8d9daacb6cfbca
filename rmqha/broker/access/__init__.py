"""Users and policies of a broker (ACL 2.0): their table, and the requests about it."""
