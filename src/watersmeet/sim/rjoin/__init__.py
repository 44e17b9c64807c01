"""RJoin on simulated overlays: settled ones as arrays, live ones node by node."""
