"""A range index over a DHT: the Prefix Hash Tree (Ramabhadran, Ratnasamy, Hellerstein and Shenker, 2004)."""
