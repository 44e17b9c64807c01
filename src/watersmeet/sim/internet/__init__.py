"""Simulated hosts, links, latencies and churn."""
