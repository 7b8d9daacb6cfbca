"""Signatures and proofs on the wire, and the rights that a request needs."""
