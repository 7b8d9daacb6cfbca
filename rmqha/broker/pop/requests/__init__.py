"""Answers to who pops: requests that wait or take messages, and what clients say of those that they were given."""
