"""Quick access to what a filter wants: bounds by queue offsets, records by key; datasets and tables over stores."""
