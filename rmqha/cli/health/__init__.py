"""`rmqha health`: every node asked at once, what they say compared, what is wrong named with its fix."""
