"""PIER: a query processor over a DHT (Huebsch, 2008)."""
