"""Ways by which commands ask: over trio, or over blocking sockets where loading trio costs more than the question."""
