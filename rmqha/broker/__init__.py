"""A broker: request processors over one store and one replica machine (no trio), and the trio shells around them."""
