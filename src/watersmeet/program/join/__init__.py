"""How rows find each other: windows as intervals, sort-merge index probes."""
