"""Changes of who belongs to a group, of controllers or of brokers."""
