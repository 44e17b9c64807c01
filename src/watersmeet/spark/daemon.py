"""The parent of Spark's Python workers: imports what tasks need once, so that every worker is born with it."""

import gc

from pyspark import daemon

import watersmeet.spark.tasks  # noqa: F401 - loaded before workers are forked

if __name__ == "__main__":
    # Workers collect garbage after every task: what is loaded here is none, and need not be looked through.
    gc.freeze()
    daemon.manager()
