"""How a query is answered: plans as values, explained and drawn."""
