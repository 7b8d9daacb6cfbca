"""Request handlers for clients and operators, one module for a family of codes; `processor` routes to them."""
