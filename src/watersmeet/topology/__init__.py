"""Sites, links, streams and queries as values, and the YAML they are read from."""
