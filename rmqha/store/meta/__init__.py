"""Small files of a store that say who it belongs to and how far it is: identity, epochs, boot, checkpoint, tables."""
