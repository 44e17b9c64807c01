"""What answers are given to, batch by batch."""

from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from watersmeet.spark.deliver.claims import Start


class Writer(Protocol):
    """What a batch's rows are given to; returns how many there were, None where only the receiver knows."""

    def write(self, rows: DataFrame, batch: int, *, replay: bool) -> int | None:
        """Deliver a batch; `replay` says that an unfinished attempt at it may have delivered something before."""
        ...

    def remove(self, batch: int) -> None:
        """Take back what an unfinished attempt at a batch has delivered, where that can be done."""
        return

    def expect(self, schema: StructType) -> None:
        """Refuse answers of a row type that cannot be written."""
        return

    def resume_after(self, batch: int, delivered: int, start: Start) -> None:
        """Begin to write; take back what came after a batch, where that can be done: the checkpoint is a copy.

        Batches after those delivered will be delivered again.
        """
        return

    def give_up(self) -> None:
        """Wait no longer for a receiver that is not there: the run is being stopped."""
        return

    def close(self) -> None:
        """Leave nothing temporary behind."""
        return
