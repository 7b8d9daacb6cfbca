"""Pop consumption: messages for a group without queues of its own, invisible until acknowledged or timed out."""
