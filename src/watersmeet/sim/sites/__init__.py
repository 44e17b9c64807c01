"""Site programs on simulated sites."""
