"""Asking all nodes, judging what they say, and explaining it: below the CLI, the page and the drills."""
