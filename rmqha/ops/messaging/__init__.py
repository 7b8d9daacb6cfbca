"""Queries about consumer groups, topics, messages and users, answered by typed values, and changes of them."""
