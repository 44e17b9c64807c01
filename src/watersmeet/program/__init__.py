"""The operators of a site, sans I/O: Arrow and NumPy in, Arrow and NumPy out; no clock, no file, no Spark."""
