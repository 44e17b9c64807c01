"""RJoin on simulated overlays: static ones as arrays, dynamic ones node by node."""
