"""How answers leave a site."""
