"""RocketMQ's ACL 2.0: users, policies, and the decision about a request."""
