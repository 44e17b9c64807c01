"""The Spark runtime: the only importer of pyspark. Sites are Spark jobs, programs run inside Arrow functions."""
