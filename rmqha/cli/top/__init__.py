"""`rmqha top`: the replicas of the groups, live."""
