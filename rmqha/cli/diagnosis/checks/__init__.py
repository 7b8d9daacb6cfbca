"""The checks of `rmqha doctor`, by what they look at."""
