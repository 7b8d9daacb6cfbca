"""The index of message keys: its files and the service that feeds them and answers questions."""
