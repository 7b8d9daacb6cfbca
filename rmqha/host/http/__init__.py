"""HTTP: the server over h11, and the endpoint with health, roles and metrics."""
