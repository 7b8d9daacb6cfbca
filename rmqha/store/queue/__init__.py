"""State derived from the log: the dispatch of records and the consume queues, plain and batch."""
