"""Replicated state of the controllers: events, the image that they build, answers made from it."""
