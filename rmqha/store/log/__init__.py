"""The CommitLog: mapped files, the record layout, appends of batches, retention, and what a start salvages."""
