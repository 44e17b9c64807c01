"""A web page about a run: what its events say, kept beside its checkpoint and shown on the loopback address."""
