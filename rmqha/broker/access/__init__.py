"""A broker's users and policies (ACL 2.0): their table, and the requests that ask for it and change it."""
