"""`rmqha config`: the keys of running nodes: show, get, set, diff."""
