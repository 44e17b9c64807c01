"""A distributed hash table over any overlay."""
