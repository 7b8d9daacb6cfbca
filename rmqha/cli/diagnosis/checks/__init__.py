"""The checks of `rmqha doctor`, by their subjects."""
