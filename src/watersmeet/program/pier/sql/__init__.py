"""SQL joins as op-graphs: nobody has to write UFL by hand."""
