"""Answers about consumer groups, topics and messages as typed values, and the orders that change them."""
