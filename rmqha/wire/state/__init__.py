"""States that servers tell of themselves, as JSON with one schema for those who answer and those who read."""
