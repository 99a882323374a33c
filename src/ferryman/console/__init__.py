"""The HTTP API: what every route of it lives by. The services bring the routes."""
