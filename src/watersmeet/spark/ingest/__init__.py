"""How rows enter a site."""
