"""How PIER finds the nodes that have data for a query: distribution trees, range index, secondary indexes."""
