"""Clusters that `rmqha up` made on this machine: their files, processes and state."""
