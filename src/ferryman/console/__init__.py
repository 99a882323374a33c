"""The HTTP API: its server, access control and errors. The systems bring the routes."""
