"""Short ways to the records that a filter wants: bounds by queue offsets, records by key."""
