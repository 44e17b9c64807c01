"""How parcels travel between sites: a protocol, and transports that implement it."""
