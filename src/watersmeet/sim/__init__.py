"""The simulator: one seeded event kernel, the network over it, and what runs on both."""
