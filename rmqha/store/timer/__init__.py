"""The files in which RocketMQ keeps what it has derived from the queue of the timer topic (formats.md §11)."""
