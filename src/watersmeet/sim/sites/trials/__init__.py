"""Random trials of simulated sites."""
