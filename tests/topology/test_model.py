"""Sites, links, streams, queries and topologies built in Python: what they refuse, and what they answer."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from watersmeet.errors import InputError, TopologyError, UnknownStream
from watersmeet.topology.model import (
    HeadSteps,
    Link,
    LinkTransport,
    PlanStep,
    Query,
    Sink,
    Site,
    Source,
    Stream,
    Topology,
)

SCHEMA = "k long, ts timestamp"


def stream(**changes: Any) -> Stream:
    given: dict[str, Any] = {"event_time": "ts", "schema": SCHEMA, "source": Source("parquet", "data/a")}
    return Stream(**({"name": "a"} | given | changes))


def frame(*dtypes: tuple[str, str], streaming: bool = True) -> Any:
    """What a stream uses of a PySpark DataFrame."""
    return SimpleNamespace(columns=[name for name, _ in dtypes], dtypes=list(dtypes), isStreaming=streaming)


def test_a_stream_built_in_python_takes_a_dataframe() -> None:
    given = frame(("K", "bigint"), ("TS", "timestamp"))
    built = Stream("a", "ts", frame=given)
    assert built.columns == ("K", "TS")
    assert built.event_time_column == "TS"
    assert built.types == {"K": "bigint", "TS": "timestamp"}


BROKERS = {"bootstrap.servers": "broker:9092"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "my stream"}, "stream name 'my stream' must be letters, digits and underscores"),
        ({"source": None}, "stream 'a' needs either a source or a streaming DataFrame, and not both"),
        ({"frame": frame(("ts", "timestamp"))},
         "stream 'a' needs either a source or a streaming DataFrame, and not both"),
        ({"schema": None}, "stream 'a' needs a schema"),
        ({"source": None, "frame": frame(("ts", "timestamp"), streaming=False)},
         "stream 'a': the DataFrame is not streaming; make it with spark.readStream"),
        ({"source": None, "frame": frame(("ts", "bigint"))}, "event_time 'ts' has type bigint; it must be timestamp"),
        ({"source": None, "frame": frame(("t", "timestamp"))},
         "event_time 'ts' is not one of its columns; did you mean 't'? known: t"),
        ({"source": None, "frame": frame(("ts", "timestamp"), ("k", "int"), ("K", "int"))},
         "duplicate column names in its schema: K, k"),
        ({"watermark": "-1 ms"}, "watermark '-1 ms' is negative"),
        ({"watermark": "soon"}, "stream 'a': watermark: duration 'soon' is not understood"),
        ({"idle_timeout": "0 s"}, "stream 'a': idle_timeout '0 s' must be positive"),
        ({"idle_timeout": ""}, "stream 'a': idle_timeout: duration '' is not understood"),
        ({"schema": "ts"}, "stream 'a': schema: 'ts' is not a column"),
        ({"late": Sink()}, "stream 'a': late needs a file format and a path"),
    ],
)  # fmt: skip
def test_streams_built_in_python_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        stream(**changes)
    assert message in str(caught.value)


def test_queries_built_in_python_are_checked() -> None:
    right: dict[str, Any] = {"name": "q", "sql": "SELECT"}
    for changes, message in (
        ({"name": "q-1"}, "query name 'q-1' must be letters"),
        ({"sql": " \n"}, "query 'q' has no SQL text"),
        ({"start": "noon"}, "query 'q': start 'noon' is not a timestamp"),
    ):
        with pytest.raises(TopologyError, match=message):
            Query(**(right | changes))


def test_topologies_built_in_python_are_checked() -> None:
    a, q = stream(), Query("q", "SELECT 1")
    for arguments, message in (
        (((a, stream(name="A")),), r"duplicate stream names \(case does not count\): A, a"),
        (((a,), (q, q)), r"duplicate query names \(case does not count\): q"),
        (((a,), (q,), (Site("here"), Site("Here"))), r"duplicate site names \(case does not count\): Here, here"),
        (((stream(site="hear"),),), r"stream 'a': unknown site 'hear'; did you mean 'here'\? known: here"),
    ):
        with pytest.raises(TopologyError, match=message):
            Topology(*arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Link(("a", "b"), latency_us=-1), "the link between 'a' and 'b': latency -1 microseconds is negative"),
        (lambda: Link(latency_us=-2_000_000), "default_link: latency -2 seconds is negative; use 0 ms or more"),
        (lambda: Link(bandwidth_bps=0), "default_link: bandwidth must be positive, not 0 bps; leave it out for no"),
        (lambda: Link(bandwidth_bps=float("inf")), "bandwidth must be positive, not inf bps; leave it out"),
        (lambda: Link(price_per_gb=-1), "default_link: price_per_gb must be 0 or more, not -1"),
        (lambda: LinkTransport("kafak"), "link_transport: unknown kind 'kafak'; did you mean 'kafka'? known: direct"),
        (lambda: LinkTransport("kafka"), "link_transport: kind kafka needs to know its brokers, such as options: {"),
        (lambda: LinkTransport("kafka", "links", options=BROKERS), "link_transport: path is for kind directory; "),
        (lambda: LinkTransport("kafka", topics="a b", options=BROKERS), "link_transport: topics 'a b' must be up to"),
        (lambda: LinkTransport(options=BROKERS), "link_transport: options are for kind kafka; remove them, or set the"),
        (lambda: LinkTransport(key_file="a", key_env="B"), "link_transport has both key_file and key_env; keep one of"),
        (lambda: LinkTransport(max_pending_bytes=0), "link_transport: max_pending must be positive, not 0 B"),
        (lambda: PlanStep("b", "sm-d1"), "the step that joins 'b': unknown method 'sm-d1'; did you mean 'SM-D1'"),
        (lambda: PlanStep("b", bloom=True), "the step that joins 'b': bloom replaces the set of keys"),
        (lambda: HeadSteps("a", (PlanStep("A"),)), "head 'a' joins 'A' twice"),
        (lambda: Query("q", "x", plan=()), "query 'q': the plan is empty"),
        (lambda: Query("q", "x", plan=(HeadSteps("a", ()),), planner="greedy"), "query 'q' has both a plan and a pl"),
        (lambda: Query("q", "x", plan=(HeadSteps("a", ()), HeadSteps("A", ()))),
         "query 'q': duplicate heads in the plan (case does not count): A, a"),
    ],
)  # fmt: skip
def test_links_and_plans_built_in_python_are_checked(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        make()
    assert message in str(caught.value)


def test_sites_named_in_python_are_checked() -> None:
    steps = HeadSteps("a", (PlanStep("b", at="hear"),))
    twice = (Link(("here", "nyc")), Link(("nyc", "here")))
    for changes, message in (
        ({"queries": (Query("q", "x", site="hear"),)}, "query 'q': unknown site 'hear'; did you mean 'here'?"),
        ({"queries": (Query("q", "x", plan=(steps,)),)},
         "query 'q': the step of head 'a' that joins 'b': unknown site 'hear'; did you mean 'here'? known: here, nyc"),
        ({"links": (Link(("here", "nic")),)}, "the link between 'here' and 'nic': unknown site 'nic'; did you mean"),
        ({"links": (Link(("nyc", "nyc")),)}, "the link between 'nyc' and 'nyc' joins a site to itself; name two sites"),
        ({"links": twice}, "the link between 'nyc' and 'here' is given twice (in either order); remove one"),
        ({"default_link": Link(("here", "nyc"))},
         "default_link is for every pair of sites; leave out between, or move it to links"),
    ):  # fmt: skip
        given: dict[str, Any] = {"streams": (stream(),), "sites": (Site("here"), Site("nyc"))}
        with pytest.raises(TopologyError) as caught:
            Topology(**(given | changes))
        assert message in str(caught.value)


def test_asking_for_what_is_not_there() -> None:
    topology = Topology((stream(name="packets_ams"), stream(name="packets_fra")), (Query("q1", "x"), Query("q2", "x")))
    with pytest.raises(UnknownStream, match=r"unknown stream 'packets_nyc'; did you mean .* known: packets_ams, "):
        topology.stream("packets_nyc")
    with pytest.raises(TopologyError, match=r"unknown query 'q3'; known: q1, q2"):
        topology.query("q3")
    with pytest.raises(TopologyError, match="say which query: q1, q2"):
        topology.query()
    with pytest.raises(TopologyError, match="say which query: the topology has none"):
        Topology((stream(),)).query()


def test_bad_input_ends_the_command_line_with_two() -> None:
    assert InputError.exit_code == TopologyError.exit_code == UnknownStream.exit_code == 2


def test_what_a_link_does_not_say_is_not_the_defaults() -> None:
    sites = (Site("ams"), Site("fra"), Site("nyc"))
    default = Link(latency_us=7, price_per_gb=1.0)
    topology = Topology((), sites=sites, links=(Link(("ams", "nyc"), latency_us=5),), default_link=default)
    assert topology.link("ams", "nyc") == Link(("ams", "nyc"), 5, None, 0.0)
    assert topology.link("ams", "fra") == Link(("ams", "fra"), 7, None, 1.0)
    # Without a default the network is free, and a site reaches itself at no cost in any case.
    assert Topology((), sites=sites).link("ams", "fra") == Link(("ams", "fra"), 0, None, 0.0)
    assert topology.link("fra", "fra") == Link(("fra", "fra"), 0, None, 0.0)
    with pytest.raises(TopologyError, match=r"link: unknown site 'nic'; did you mean 'nyc'\? known: ams, fra, nyc"):
        topology.link("ams", "nic")


def test_where_answers_are_wanted() -> None:
    def site(query_site: str | None, *streams_at: str, sites: tuple[str, ...] = ("ams", "nyc")) -> str:
        streams = tuple(stream(name=f"s{number}", site=at) for number, at in enumerate(streams_at))
        query = Query("q", "SELECT", site=query_site)
        return Topology(streams, (query,), tuple(Site(name) for name in sites)).query_site(query)

    assert site("nyc", "ams", "ams") == "nyc"
    assert site(None, "ams", sites=("ams",)) == "ams"
    assert site(None, "nyc", "nyc") == "nyc"
    with pytest.raises(TopologyError) as caught:
        site(None, "ams", "nyc")
    assert str(caught.value) == (
        "query 'q' does not say where its answers are wanted; add `site:` to the query with one of: ams, nyc"
    )
    assert Topology((stream(),)).query_site(Query("q", "SELECT")) == "here"
    with pytest.raises(TopologyError, match=r"query 'q': unknown site 'nyc'; known: here"):
        Topology((stream(),)).query_site(Query("q", "SELECT", site="nyc"))
