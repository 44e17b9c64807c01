"""All sinks of a site: answers of its queries, and rows for which their expressions fail, as queries come and go."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from watersmeet.program.finish.failed import failed_sink
from watersmeet.program.finish.model import Finish
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.program import SiteProgram
from watersmeet.spark.catalogue import Catalogue
from watersmeet.spark.deliver.claims import Start
from watersmeet.spark.deliver.delivery import FAILED_SCHEMA, Delivery
from watersmeet.spark.deliver.evaluate import SparkEvaluator
from watersmeet.spark.deliver.sinks import FileWriter
from watersmeet.spark.deliver.writer import Writer
from watersmeet.spark.durable import Disk
from watersmeet.spark.files import FileShelf
from watersmeet.spark.site.reports import SiteReports
from watersmeet.topology.model import Query, Sink


class Deliveries:
    """The deliveries of the programs that a site has had, by sink."""

    def __init__(
        self,
        spark: SparkSession,
        catalogue: Catalogue,
        shelf: FileShelf,
        evaluator: SparkEvaluator,
        open_writer: Callable[[Query], Writer],
        reports: SiteReports,
        run_id: str,
    ) -> None:
        self._spark = spark
        self._catalogue = catalogue
        self._shelf = shelf
        self._evaluator = evaluator
        self._open_writer = open_writer
        self._reports = reports
        self._run_id = run_id
        self._open: dict[str, Delivery] = {}

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._open.values()))

    def open(self, program: SiteProgram) -> list[Delivery]:
        """Open sinks of a program that are not open yet; those are returned, and have still to take hold of them."""
        before = list(self)
        # Once, whatever versions and branches of it there are.
        finishes = {
            finish.target.name: finish
            for _, finish in program.finishes
            if finish.answers and not finish.target.is_stream  # of an outer join, a branch whose rows are answers
        }
        found = dict(self._open)
        for query, finish in finishes.items():
            if query not in found:
                schema = _named(self._evaluator.answer_schema(finish), finish)
                writer = self._open_writer(self._catalogue.query(finish.definition))
                found[query] = Delivery(self._spark, query, schema, writer, self._shelf, self._reports.delivered)
        for query, sink in self._failed_sinks(program).items():
            name = failed_sink(query)
            if name not in found:
                disk = Disk(self._catalogue.topology.survives_power_cuts)
                writer = FileWriter(self._spark, sink, f"{query}-{self._run_id}", disk)
                found[name] = Delivery(self._spark, name, FAILED_SCHEMA, writer, self._shelf)
        self._open = found
        return [delivery for delivery in self if delivery not in before]

    def _failed_sinks(self, program: SiteProgram) -> dict[str, Sink]:
        """Where queries that have a part in a program keep rows for which an expression fails."""
        queries = sorted({query for part in program.parts for query in part.queries})
        found = {query: self._catalogue.query_named(query).failed for query in queries}
        return {query: sink for query, sink in found.items() if sink is not None}

    def end(self, program: SiteProgram) -> list[Delivery]:
        """Close the sinks that a program does not have any more, and say which."""
        answered = set(program.answered) | {failed_sink(query) for query in self._failed_sinks(program)}
        ended = [delivery for delivery in self if delivery.query not in answered]
        self._open = {name: delivery for name, delivery in self._open.items() if name in answered}
        for delivery in ended:
            delivery.close()
        return ended

    def take_over(self, ledger: SiteLedger, start: Start) -> None:
        """Take hold of all sinks, and take back what came there after the ledger."""
        for delivery in self:
            delivery.roll_back(ledger.number, ledger.undelivered.get(delivery.query, ()), start)

    def give(self, ledger: SiteLedger, failed: Callable[[BaseException], object], *, replay: bool = False) -> None:
        """Have what the ledger has undelivered delivered."""
        for delivery in self:
            delivery.give(ledger.undelivered.get(delivery.query, ()), failed, replay=replay)

    @property
    def delivered(self) -> Mapping[str, int]:
        """The last micro-batch whose answers a sink has, by sink."""
        return {name: delivery.delivered for name, delivery in self._open.items()}

    @property
    def pending(self) -> list[Future[None] | None]:
        """What is done when the sinks have all that was given."""
        return [delivery.last for delivery in self]

    def behind(self, ledger: SiteLedger) -> list[Delivery]:
        """Deliveries whose sinks do not have all that the ledger has for them."""
        found = []
        for delivery in self:
            undelivered = ledger.undelivered.get(delivery.query, ())
            if undelivered and undelivered[-1].batch > delivery.delivered:
                found.append(delivery)
        return found

    def close(self) -> None:
        """Deliver what is held back, and close all."""
        for delivery in self:
            delivery.close()


def _named(schema: StructType, finish: Finish) -> StructType:
    """The row type of answers under their own names."""
    return StructType(
        [StructField(name, field.dataType) for name, field in zip(finish.names, schema.fields, strict=True)]
    )
