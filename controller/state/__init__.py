"""Replicated state of the controllers: events, snapshot images, answers."""
