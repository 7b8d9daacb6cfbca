"""Pop: messages that a group takes without owning a queue, out of sight until they are acknowledged or in vain."""
