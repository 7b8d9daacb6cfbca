"""Configuration of servers: keys, their checks, and how properties are read."""
