"""PIER's query processor without a network: tuples, UFL, op-graphs and the operators of their local dataflow."""
