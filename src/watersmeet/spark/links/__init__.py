"""How parcels travel between sites."""
