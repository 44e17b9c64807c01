"""PIER as the system of a scenario."""
