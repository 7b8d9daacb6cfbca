"""Answers to clients and operators, one module for a family of request codes; `processor` routes to them."""
