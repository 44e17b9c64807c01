"""Tables: batch sources that are read as a whole, at the first start and at each refresh, and filed as versions.

What was read is state of the checkpoint: a restart or a replay has the same rows, whatever the source holds by then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from watersmeet.errors import InputError, TopologyError, did_you_mean
from watersmeet.metrics.bus import Warnings
from watersmeet.program.site.ingest import Ingest
from watersmeet.program.site.ledger import Ingested
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.codec import decode
from watersmeet.query.windows import END_US, TABLE_US
from watersmeet.spark.analyser import readable
from watersmeet.spark.files import FileShelf
from watersmeet.spark.ingest.new_files import FILE_FORMATS, listing_of
from watersmeet.spark.ingest.sources import check_source, ingest_columns, open_files, open_stream
from watersmeet.spark.jobs import map_rows, reports
from watersmeet.spark.session import option_values
from watersmeet.spark.tasks import IngestVersion
from watersmeet.topology.model import Table, Topology

_RETRY_US = 60_000_000  # after which a table that could not be refreshed is read again, at the latest


def with_table_schemas(spark: SparkSession, topology: Topology) -> Topology:
    """The topology with the columns of all tables; where none are given, Spark infers them from the source."""
    if topology.has_schemas:
        return topology
    return replace(
        topology, tables=tuple(table if table.has_schema else _inferred(spark, table) for table in topology.tables)
    )


def _inferred(spark: SparkSession, table: Table) -> Table:
    source = table.source
    assert source is not None, "a table has a source or a frame"
    check_source(table, StructType(), once=False)
    options = option_values(spark, source.options, table.what)
    if source.format == "csv":
        options.setdefault("inferSchema", "true")
    reader = spark.read.format(source.format).options(**options)
    try:
        schema = (reader.load(source.path) if source.path else reader.load()).schema
    except Exception as error:
        raise InputError(
            f"{table.what}: its columns cannot be inferred: {readable(error)}; give it a schema, such as "
            'schema: "id long, name string"'
        ) from None
    ddl = ", ".join(f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}" for field in schema)
    return replace(table, schema=ddl)


def open_table(spark: SparkSession, table: Table, schema: StructType) -> DataFrame:
    """The rows that a table has now."""
    source = table.source
    if source is None or source.format in FILE_FORMATS:
        listing = None if source is None else listing_of(table)
        paths = [] if listing is None else [file.path for file in listing.files()]
        return open_files(spark, table, schema, paths) if paths else open_stream(spark, table, schema, batch=True)
    reader = spark.read.format(source.format).options(**option_values(spark, source.options, table.what))
    try:  # other sources have their own schema, and many refuse to be given one
        rows = reader.load(source.path) if source.path else reader.load()
    except Exception as error:
        raise InputError(f"{table.what}: Spark cannot open its source: {readable(error)}") from None
    found = {name.casefold(): name for name in rows.columns}
    for name in schema.fieldNames():
        if name.casefold() not in found:
            near = did_you_mean(name, rows.columns)
            raise TopologyError(f"{table.what}: its source has no column {name!r} of its schema; {near}")
    return rows.select(
        [
            F.col(f"`{found[field.name.casefold()].replace('`', '``')}`").cast(field.dataType).alias(field.name)
            for field in schema
        ]
    )


@dataclass(frozen=True)
class TableReader:
    """Reads the tables of a site."""

    spark: SparkSession
    topology: Topology
    schemas: Mapping[str, StructType]
    shelf: FileShelf

    def read_due(
        self, program: SiteProgram, due: Sequence[tuple[StreamScan, int]], now_us: int, warnings: Warnings
    ) -> tuple[list[Ingested], dict[str, int]]:
        """Read tables that are due; and the instants until which their versions are in force at least.

        If a table cannot be read again, the version before it stays in force, and it is tried again soon.
        """
        found: list[Ingested] = []
        in_force: dict[str, int] = {}
        for scan, from_us in due:
            table = self.topology.stream(scan.stream)
            assert isinstance(table, Table), "a table of the topology"
            refresh_us = END_US - now_us if table.refresh_us is None else table.refresh_us
            try:
                found += self.read(program, scan, from_us)
                warnings.forget(table.name)
            except Exception as error:
                if from_us == TABLE_US:
                    raise
                refresh_us = min(refresh_us, _RETRY_US)
                text = f"the version read before stays in force, and it is tried again in {refresh_us / 1e6:g} s"
                warnings.say(table.name, f"{error}; {text}")
            in_force[scan.stream] = now_us + refresh_us
        return found, in_force

    def read(self, program: SiteProgram, scan: StreamScan, from_us: int) -> list[Ingested]:
        """Read a table and file its rows as the version that is in force from an instant on."""
        table = self.topology.stream(scan.stream)
        assert isinstance(table, Table), "a table of the topology"
        ingest = Ingest(program, self.shelf, scan)
        try:
            rows = ingest_columns(
                open_table(self.spark, table, self.schemas[scan.stream]), table, self.schemas[scan.stream], scan
            )
            found = [decode(Ingested, row) for row in reports(map_rows(rows, IngestVersion(ingest, from_us)))]
            return found or [ingest.version(rows.limit(0).toArrow(), from_us)]
        except (InputError, TopologyError):
            raise
        except Exception as error:
            raise InputError(f"{table.what}: its source cannot be read: {readable(error)}") from error
