"""Timer messages, each with its own delivery time: waiting entries, progress of delivery, forms of a message."""
