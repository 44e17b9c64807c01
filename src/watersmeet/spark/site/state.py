"""What the parts of a site's job share: checkpoint, engine, program, links and sinks, and the locks that guard them."""

import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from watersmeet.errors import WatersmeetError
from watersmeet.metrics.bus import Warnings
from watersmeet.metrics.events import ParcelsRefused
from watersmeet.program.site.agreement import Versions
from watersmeet.program.site.changes import Change
from watersmeet.program.site.deployment import Deployment
from watersmeet.program.site.engine import SiteEngine, read_versions
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.program import SiteProgram
from watersmeet.spark.changes import check_here, identity_of
from watersmeet.spark.deliver.claims import Start
from watersmeet.spark.deliver.deliveries import Deliveries
from watersmeet.spark.deliver.delivery import LateRows
from watersmeet.spark.deliver.evaluate import SparkEvaluator
from watersmeet.spark.deliver.writer import Writer
from watersmeet.spark.ingest.derived import SparkDerivation
from watersmeet.spark.ingest.intake import Intake
from watersmeet.spark.ingest.late_rows import LateRowsWatch
from watersmeet.spark.ingest.new_files import NewFiles
from watersmeet.spark.ingest.tables import TableReader
from watersmeet.spark.jobs import TaskRunner
from watersmeet.spark.links.protocol import LinkEnd, with_reader
from watersmeet.spark.links.site_links import SiteLinks
from watersmeet.spark.observed import ObservedStatistics
from watersmeet.spark.site.reports import SiteReports
from watersmeet.spark.site.settings import SiteSettings
from watersmeet.spark.tasks import write_program
from watersmeet.topology.model import Query


class SiteState:
    """What a site works on; its program, engine and intake are replaced when plans change."""

    def __init__(self, settings: SiteSettings, program: SiteProgram, open_writer: Callable[[Query], Writer]) -> None:
        spark, catalogue, checkpoint, shelf = (
            settings.spark,
            settings.catalogue,
            settings.checkpoint,
            settings.checkpoint.shelf,
        )
        self.settings, self.program, self.checkpoint, self.events = settings, program, checkpoint, settings.events
        self.warnings = Warnings(settings.events, program.site)
        self.failed: Callable[[BaseException], object] = lambda error: None  # told of what threads fail for
        self.closing = threading.Event()
        self.gate = threading.Lock()  # rows are read and filed for one program, which does not change meanwhile
        self.lock = threading.RLock()  # of ledger, links and reports: micro-batches and the watcher change them
        self.files = threading.Lock()  # of the next one, and of what is declared idle
        self.is_ingesting = False  # tasks write files that no ledger names yet: nothing is deleted
        self.is_held_back = False  # whether new rows wait for readers or sinks
        self._read_versions: tuple[str, Versions] | None = None  # the last ones that were read, and their file

        token = uuid.uuid4().hex[:8]
        self.start = Start(token, checkpoint.ledger.writer)
        self.links = self._links(token)
        run_tasks = TaskRunner(spark)
        evaluator = SparkEvaluator(spark, catalogue.bounds, shelf)
        self.engine = SiteEngine(
            *(program, catalogue.delays_us, shelf, run_tasks, evaluator, run_tasks.parallelism),
            derive=SparkDerivation(spark, catalogue.schemas, shelf, run_tasks),
            slack_us=settings.slack_us,
            judge=self.cause_against,
            distances=settings.distances,
        )
        self._program_path = checkpoint.directory / "program.json"
        self.write_program()
        self.intake = Intake(
            *(spark, settings.topology, program, catalogue.schemas, shelf, checkpoint.watermarks_path, run_tasks),
            program_path=str(self._program_path),
        )
        self.tables = TableReader(spark, settings.topology, catalogue.schemas, shelf)
        self.framed = program.sources  # what is read of streams, as Spark's query lays it out
        listings = self.intake.listings
        self.new_files = (
            None
            if listings is None
            else NewFiles(listings, shelf, self.ledger.inputs, lambda text: self.warnings.say(text, text))
        )
        self.reports = SiteReports(program.site, checkpoint.directory, settings.events)
        run_id = f"{program.site}-{checkpoint.run_id}"
        self.deliveries = Deliveries(*(spark, catalogue, shelf, evaluator, open_writer, self.reports, run_id))
        self.deliveries.open(program)
        self.late = LateRows(spark, settings.topology, self.local_schemas, shelf, run_id)
        self.late_watch = LateRowsWatch(settings.topology, self.warnings, self.ledger.streams)
        self.observed = ObservedStatistics(program, checkpoint, settings.observations)

    def _links(self, token: str) -> SiteLinks:
        settings, checkpoint, program = self.settings, self.checkpoint, self.program
        end = LinkEnd(checkpoint.run_id, settings.programs_digest, checkpoint.ledger.epoch + 1, token)
        sites = read_versions(checkpoint.shelf, checkpoint.ledger).deployment.sites
        peers = tuple(site for site in sites if site != program.site)
        watched = None if settings.observations is None else settings.observations.acknowledged
        return SiteLinks(
            *(settings.links, program, checkpoint.shelf, end, self.warnings, peers, watched),
            catches_up=settings.once,
            refused=lambda sender, count: settings.events.publish(ParcelsRefused(program.site, sender, count)),
        )

    @property
    def site(self) -> str:
        return self.program.site

    @property
    def directory(self) -> Path:
        """Where the site's checkpoint is."""
        return self.checkpoint.directory

    @property
    def ledger(self) -> SiteLedger:
        """The state as it was last committed."""
        return self.checkpoint.ledger

    @property
    def versions(self) -> Versions:
        """What the site knows of versions of plans; also asked for by threads that do not hold the lock."""
        while True:
            ledger = self.ledger
            if self._read_versions is not None and self._read_versions[0] == ledger.versions:
                return self._read_versions[1]
            try:
                self._read_versions = ledger.versions, self.engine.versions(ledger)
            except OSError:
                if ledger is self.ledger:
                    raise  # otherwise there are newer ones, and the file of these was deleted meanwhile

    @property
    def streams(self) -> list[str]:
        """The streams that arrive here and are read."""
        return [scan.stream for scan in self.program.sources]

    @property
    def refreshed_tables(self) -> frozenset[str]:
        """Tables that are read again from time to time, of all sites."""
        return frozenset(table.name for table in self.settings.topology.tables if table.refresh is not None)

    @property
    def local_schemas(self) -> dict[str, StructType]:
        return {name: self.settings.catalogue.schemas[name] for name in self.streams}

    @property
    def is_read_by_spark(self) -> bool:
        """Whether Spark reads the streams; otherwise the job finds their files itself, and Spark only says when."""
        return self.new_files is None

    def write_program(self) -> None:
        """Let tasks know what the site does."""
        write_program(self._program_path, self.versions)
        self.checkpoint.written_for_tasks(self._program_path.name)

    def write_watermarks(self) -> None:
        """Let tasks know which rows are late."""
        self.checkpoint.write_watermarks(self.engine.watermarks(self.ledger))

    def identity(self, deployment: Deployment) -> dict[str, Any]:
        """What the checkpoint is for with a deployment."""
        finishes = [finish for joined in deployment.in_force for finish in joined.finishes]
        return identity_of(self.site, finishes, self.settings.catalogue)

    def cause_against(self, change: Change) -> str:
        """Why this site cannot go over to a change; empty if it can."""
        try:
            check_here(self.program, change, self.settings.catalogue, self.settings.spark, self.is_read_by_spark)
        except WatersmeetError as error:
            return str(error)
        return ""

    def released(self, ledger: SiteLedger) -> SiteLedger:
        """The ledger without what readers and sinks have made durable."""
        for reader, end in self.links.readers(self.ledger).items():
            ledger = with_reader(self.engine.acknowledged(ledger, reader, end.number), reader, end)
        for sink, batch in self.deliveries.delivered.items():
            ledger = self.engine.delivered(ledger, sink, batch)
        return ledger

    def forget_unused(self) -> None:
        """Delete files that no ledger names, unless something may be about to name them."""
        with self.files:
            if not self.is_ingesting and self.lock.acquire(blocking=False):
                try:
                    self.checkpoint.forget_unused()
                finally:
                    self.lock.release()

    def publish(self) -> None:
        """Give the links what waits for other sites."""
        with self.lock:  # the outbox's files stay while they are copied
            self.links.publish(self.ledger)

    def report_status(self) -> None:
        """Say what waits here."""
        backlog = self.links.backlog(self.ledger)
        self.reports.status(backlog, self.deliveries, self.links.latency_s, self.is_held_back)
