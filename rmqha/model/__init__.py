"""Terms of the field: plain values that all other packages share. Pure."""
