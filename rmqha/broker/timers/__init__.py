"""Timer messages: each is delivered at its own time. What waits, how far delivery is, and the forms of a message."""
