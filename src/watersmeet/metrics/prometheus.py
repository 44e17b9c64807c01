"""Metrics for Prometheus, served on the loopback address.

Counters count since the exporter started; those of links are totals since their checkpoint began.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, start_http_server
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from watersmeet.errors import InputError
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import (
    AnswerSample,
    AnswersDelivered,
    ChangeRefused,
    Event,
    LinkCounts,
    MicroBatchCompleted,
    ParcelsRefused,
    PlanChangeProposed,
    PlanDecision,
    PlanInForce,
    QueryAdded,
    QueryDescribed,
    QueryEnded,
    QueryRemoved,
    RunEnded,
    RunStarted,
    RunWarning,
    ShippingExpected,
    SiteProgramInForce,
    SiteStatus,
    TopologyInForce,
    VersionDropped,
)

LOOPBACK = "127.0.0.1"
_BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)


@dataclass(frozen=True, slots=True)
class Exporter:
    """A running exporter: where it listens, and how it is stopped."""

    port: int
    stop: Callable[[], None]

    @property
    def url(self) -> str:
        """Where Prometheus finds the metrics."""
        return f"http://{LOOPBACK}:{self.port}/metrics"


def serve(bus: EventBus, port: int) -> Exporter:
    """Serve the metrics of a run on the loopback address; port 0 picks a free one."""
    registry = CollectorRegistry()
    metrics = _Metrics(registry)
    registry.register(_Links(bus))
    try:
        server, thread = start_http_server(port, addr=LOOPBACK, registry=registry)
    except OSError as error:
        raise InputError(
            f"metrics port {port} cannot be opened: {error.strerror or error}; give another one"
        ) from error
    unsubscribe = bus.subscribe(metrics.read, replay=True)

    def stop() -> None:
        unsubscribe()
        server.shutdown()
        server.server_close()
        thread.join()

    return Exporter(server.server_port, stop)


class _Metrics:
    """The metrics that follow from the sequence of events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"watersmeet_{name}", what, labels, registry=registry)

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"watersmeet_{name}", what, labels, registry=registry)

        self.build = Info("watersmeet_build", "Version of Watersmeet.", registry=registry)
        self.is_active = gauge("run_active", "1 while the run goes on, 0 once it has ended.")
        self.warnings = counter("warnings_total", "Warnings of the run.", "site", "query")
        self.plan_version = gauge("plan_version", "Version of the plan in force.", "query")
        self.plan_bytes = gauge(
            "plan_expected_bytes_per_second", "Bytes a second that the plan in force is expected to ship.", "query"
        )
        self.refused = counter("plan_changes_refused_total", "Changes of plans or queries that sites called off.")
        self.decisions = counter("plan_decisions_total", "Other plans considered.", "query", "outcome")
        self.micro_batches = Histogram(
            "watersmeet_micro_batch_duration_seconds",
            "Duration of completed micro-batches.",
            ["site"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.completed = gauge("last_micro_batch_timestamp_seconds", "When the last micro-batch completed.", "site")
        self.phases = counter("micro_batch_phase_seconds_total", "Time in each phase.", "site", "phase")
        self.rows_in = counter("input_rows_total", "Rows ingested.", "site", "stream")
        self.late = counter("late_rows_total", "Rows behind the watermark.", "site", "stream")
        self.malformed = counter("malformed_rows_total", "Rows that do not parse.", "site", "stream")
        self.null_keys = counter("null_key_rows_total", "Rows that never join because a key is NULL.", "site")
        self.failed = counter(
            "failed_rows_total", "Rows and combinations for which an expression fails.", "site", "query"
        )
        self.refused_parcels = counter(
            "refused_parcels_total", "Parcels that did not open with the keys of links.", "site", "sender"
        )
        self.answers = counter("answers_total", "Answers delivered, where the sink counts.", "site", "query")
        self.delays = Histogram(
            "watersmeet_answer_delay_seconds",
            "From reading the rows of a micro-batch to its answers in the sink.",
            ["query"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.undelivered = gauge("undelivered_micro_batches", "Micro-batches that the sink has yet to take.", "query")
        self.backlog = gauge("link_backlog_bytes", "Bytes that the other site has not acknowledged.", "from", "to")
        self.latency = gauge(
            "link_latency_seconds", "Until the last parcel was durable at the other site.", "from", "to"
        )
        self.held_back = gauge("site_held_back", "1 while new rows wait for other sites to take theirs.", "site")
        self.watermark = gauge(
            "watermark_timestamp_seconds", "Watermark of the stream, in event time.", "site", "stream"
        )
        self.state_rows = gauge("state_rows", "Rows in the state.", "site")
        self.state_bytes = gauge("state_bytes", "Size of the state.", "site")
        self.segments = gauge("state_segments", "Segments of the state.", "site")

    def read(self, at: float, event: Event) -> None:
        match event:
            case RunStarted():
                self.build.info({"version": event.version})
                self.is_active.set(1)
            case RunEnded():
                self.is_active.set(0)
            case RunWarning():
                self.warnings.labels(event.site or "", event.query or "").inc()
            case PlanInForce():
                self._read_plan(event)
            case PlanDecision():
                self.decisions.labels(event.query, "accepted" if event.accepted else "rejected").inc()
            case MicroBatchCompleted():
                self._read_micro_batch(at, event)
            case QueryRemoved():
                for gauge in (self.plan_version, self.plan_bytes):
                    with suppress(KeyError):
                        gauge.remove(event.query)
            case QueryEnded():
                for counts in (self.answers, self.failed):
                    with suppress(KeyError):
                        counts.remove(event.site, event.query)
                for of_query in (self.undelivered, self.delays):
                    with suppress(KeyError):
                        of_query.remove(event.query)
            case ChangeRefused():
                self.refused.inc()
            case SiteStatus():
                self._read_status(event)
            case ShippingExpected():
                for query, size in event.queries.items():
                    self.plan_bytes.labels(query).set(size)
            case AnswersDelivered():
                self.delays.labels(event.query).observe(event.seconds)
            case ParcelsRefused():
                self.refused_parcels.labels(event.site, event.sender).inc()
            case PlanChangeProposed() | VersionDropped() | QueryAdded():
                pass  # what counts is the plan in force
            case TopologyInForce() | QueryDescribed() | SiteProgramInForce() | AnswerSample():
                pass  # what the run is, not what it does
            case LinkCounts():
                pass  # totals, which `_Links` takes from the bus
            case _:
                assert_never(event)

    def _read_plan(self, event: PlanInForce) -> None:
        self.plan_version.labels(event.query).set(event.version)
        if event.expected_bytes_s is not None:
            self.plan_bytes.labels(event.query).set(event.expected_bytes_s)
        else:
            self.plan_bytes.remove(event.query)

    def _read_status(self, event: SiteStatus) -> None:
        for to, size in event.backlog_bytes.items():
            self.backlog.labels(event.site, to).set(size)
        for to, seconds in event.latency_s.items():
            self.latency.labels(event.site, to).set(seconds)
        for query, count in event.undelivered.items():
            self.undelivered.labels(query).set(count)
        self.held_back.labels(event.site).set(event.is_held_back)

    def _read_micro_batch(self, at: float, event: MicroBatchCompleted) -> None:
        site = event.site
        self.micro_batches.labels(site).observe(event.seconds)
        self.completed.labels(site).set(at)
        for phase, seconds in event.phases.items():
            self.phases.labels(site, phase).inc(seconds)
        for counter, rows in (
            (self.rows_in, event.rows_in),
            (self.late, event.late),
            (self.malformed, event.malformed),
        ):
            for stream, count in rows.items():
                counter.labels(site, stream).inc(count)
        self.null_keys.labels(site).inc(event.null_keys)
        for query, count in event.failed.items():
            self.failed.labels(site, query).inc(count)
        for query, answers in event.answers.items():
            if answers is not None:
                self.answers.labels(site, query).inc(answers)
        for stream, watermark_us in event.watermarks.items():
            if watermark_us is not None:
                self.watermark.labels(site, stream).set(watermark_us / 1e6)
        self.state_rows.labels(site).set(event.state_rows)
        self.state_bytes.labels(site).set(event.state_bytes)
        self.segments.labels(site).set(event.segments)


class _Links(Collector):
    """The totals of links, as the latest event of each says."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus

    def collect(self) -> Iterator[CounterMetricFamily]:
        labels = ("from", "to", "purpose")
        shipped = CounterMetricFamily("watersmeet_link_bytes", "Bytes sent over the link.", labels=labels)
        batches = CounterMetricFamily("watersmeet_link_batches", "Batches sent over the link.", labels=labels)
        tuples = CounterMetricFamily("watersmeet_link_tuples", "Tuples sent over the link.", labels=labels)
        for _, event in self._bus.recent(LinkCounts):
            values = (event.site, event.to, event.purpose)
            shipped.add_metric(values, event.bytes)
            batches.add_metric(values, event.batches)
            tuples.add_metric(values, event.tuples)
        yield from (shipped, batches, tuples)
