"""Hosts for drills: namespaces, disks and bad cables on one machine."""
