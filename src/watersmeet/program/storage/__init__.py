"""How rows are kept and shipped: sorted segments, packed columns, parcels."""
