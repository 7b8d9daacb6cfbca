"""Words of the field: plain values that every other room shares. Pure."""
