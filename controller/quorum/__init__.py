"""The controllers' own Raft group: its log on disk, who may join, requests about it."""
