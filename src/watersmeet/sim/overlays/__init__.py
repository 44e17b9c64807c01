"""Structured overlays: routers that bring a message to the node responsible for an identifier."""
