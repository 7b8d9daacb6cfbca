"""Sockets of servers and clients: sessions, turns among them, connections in and out."""
