"""The consumer, its membership, its queues and offsets."""
