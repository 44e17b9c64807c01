"""The topology file: every key it can have, and for every mistake an error with file and line."""

from pathlib import Path

import pytest

from watersmeet.errors import TopologyError
from watersmeet.topology import model
from watersmeet.topology.load import load_topology
from watersmeet.topology.model import (
    EVERY_PAIR,
    METHODS,
    Adapt,
    HeadSteps,
    Link,
    LinkTransport,
    PlanStep,
    Sink,
    Site,
    Source,
    Stream,
)

# A file with one site, as users write it.
EXAMPLE = """\
sites: [here]                        # or a mapping with settings
streams:
  a: &a
    site: here
    schema: "k long, id long, ts timestamp, v double"
    event_time: ts
    watermark: "0 seconds"          # how late rows may come; default 0 seconds
    source: {format: parquet, path: data/a, options: {maxFilesPerTrigger: 1}}
  b: {<<: *a, source: {format: parquet, path: data/b}}
  c: {<<: *a, source: {format: parquet, path: data/c}}
queries:
  q:
    sql: >
      SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id
      FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE], c [RANGE 1 MINUTE]
      WHERE a.k = b.k AND b.k = c.k AND a.v > 0.1
    sink: {format: parquet, path: out/q}   # any Spark sink format; default prints to the console
"""
STREAM = """\
  a:
    schema: "k long, ts timestamp"
    event_time: ts
    source: {format: parquet, path: data/a}
"""
QUERIES = """\
queries:
  q:
    sql: SELECT a.k AS k FROM a [ROWS 1], a [ROWS 1] AS b WHERE a.k = b.k
"""
SCHEMA = "k long, ts timestamp"


def write(directory: Path, text: str) -> Path:
    path = directory / "topology.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def with_stream(lines: str) -> str:
    """A topology whose stream `a` has these keys, from line 3 on."""
    return f"streams:\n  a:\n{lines}\n{QUERIES}"


def with_query(lines: str) -> str:
    """A topology whose query `q` has these keys, from line 8 on."""
    return f"streams:\n{STREAM}queries:\n  q:\n{lines}\n"


def with_sites(lines: str) -> str:
    """A topology of the sites ams, fra and nyc with these keys of the top from line 2 on."""
    return f"sites: [ams, fra, nyc]\n{lines}\nstreams:\n{STREAM}    site: ams\n{QUERIES}"


def with_plan(lines: str) -> str:
    """A topology of the sites ams, fra and nyc whose query `q` has these keys from line 11 on."""
    return f"sites: [ams, fra, nyc]\nstreams:\n{STREAM}    site: ams\n{QUERIES}{lines}\n"


# What loads -----------------------------------------------------------------------------------------------------------


def test_an_example_loads(tmp_path: Path) -> None:
    topology = load_topology(write(tmp_path, EXAMPLE))
    assert topology.sites == (Site("here"),)
    assert topology.directory == str(tmp_path)
    assert [stream.name for stream in topology.streams] == ["a", "b", "c"]
    assert topology.stream("a") == Stream(
        name="a",
        site="here",
        schema="k long, id long, ts timestamp, v double",
        event_time="ts",
        watermark="0 seconds",
        source=Source("parquet", str(tmp_path / "data/a"), {"maxFilesPerTrigger": "1"}),
    )
    assert topology.query().name == "q"
    assert topology.query("q").sink == Sink("parquet", str(tmp_path / "out/q"))
    assert "WHERE a.k = b.k AND b.k = c.k AND a.v > 0.1" in topology.query("q").sql


def test_every_key_is_read(tmp_path: Path) -> None:
    text = """\
sites:
  ams:
  fra: {}
streams:
  a:
    site: fra
    schema: "k long, Ts timestamp"
    event_time: ts
    watermark: 1 minute 30 seconds
    source: {format: csv, path: in, options: {header: true, sep: ";", maxFilesPerTrigger: 1.10}}
    late: {format: json, path: late, options: {compression: gzip}}
queries:
  q:
    sql: SELECT a.k AS k FROM a [ROWS 1], a [ROWS 1] AS b WHERE a.k = b.k
    sink: {format: orc, path: out, options: {compression: none}}
    allow_cross: true
    start: 2025-01-31 12:00:00+01:00
    checkpoint: state
"""
    topology = load_topology(write(tmp_path, text))
    assert topology.sites == (Site("ams"), Site("fra"))
    a, q = topology.stream("A"), topology.query("q")
    assert (a.site, a.event_time_column, a.watermark_us) == ("fra", "Ts", 90_000_000)
    # Scalars stay as they were written: 1.10 is not 1.1.
    assert a.source == Source("csv", str(tmp_path / "in"), {"header": "true", "sep": ";", "maxFilesPerTrigger": "1.10"})
    assert a.late == Sink("json", str(tmp_path / "late"), {"compression": "gzip"})
    assert q.sink == Sink("orc", str(tmp_path / "out"), {"compression": "none"})
    assert (q.allow_cross, q.checkpoint) == (True, str(tmp_path / "state"))
    assert q.start_us == 1_738_321_200_000_000  # 11:00 in UTC


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    topology = load_topology(write(tmp_path, f"streams:\n{STREAM}{QUERIES}"))
    a, q = topology.stream("a"), topology.query()
    assert (topology.sites, a.site, a.watermark_us, a.late) == ((Site("here"),), "here", 0, None)
    assert (a.idle_timeout, a.idle_timeout_us) == ("5 minutes", 300_000_000)
    assert (q.site, q.plan, q.planner) == (None, None, None)
    assert (topology.links, topology.default_link, topology.link_transport) == ((), None, LinkTransport())
    assert (q.sink, q.allow_cross, q.start_us, q.checkpoint) == (Sink("console"), False, None, None)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("data/a", "{here}/data/a"),
        ("../a", "{here}/../a"),
        ("/data/a", "/data/a"),
        ("data/a*/x=1", "{here}/data/a*/x=1"),
        ("s3a://bucket/a", "s3a://bucket/a"),
        ("file:///data/a", "file:///data/a"),
    ],
)
def test_relative_paths_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    monkeypatch.chdir("/")
    text = f"streams:\n{STREAM}{QUERIES}".replace("data/a", written)
    source = load_topology(write(tmp_path, text)).stream("a").source
    assert source is not None and source.path == meant.format(here=tmp_path)


def test_a_relative_path_to_the_file_itself_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, f"streams:\n{STREAM}{QUERIES}")
    monkeypatch.chdir(tmp_path)
    source = load_topology("topology.yaml").stream("a").source
    assert source is not None and source.path == str(tmp_path / "data/a")


def test_merges_give_way_to_what_is_written_and_to_earlier_merges(tmp_path: Path) -> None:
    text = """\
streams:
  a: &a
    schema: "k long, ts timestamp"
    event_time: ts
    watermark: 1 second
    source: &files {format: parquet, path: data/a}
  b: &b {<<: *a, watermark: 2 seconds, source: {<<: *files, path: data/b}}
  c: {<<: [*b, *a], schema: "k string, ts timestamp"}
"""
    topology = load_topology(write(tmp_path, text + QUERIES))
    assert [s.watermark_us for s in topology.streams] == [1_000_000, 2_000_000, 2_000_000]
    assert [s.source and s.source.path for s in topology.streams] == [
        str(tmp_path / "data/a"), str(tmp_path / "data/b"), str(tmp_path / "data/b"),
    ]  # fmt: skip
    assert topology.stream("c").types == {"k": "string", "ts": "timestamp"}


@pytest.mark.parametrize(
    ("sites", "names"),
    [("[ams, fra]", ["ams", "fra"]), ("{ams: , fra: {}}", ["ams", "fra"]), ("\n  - ams", ["ams"])],
)
def test_sites_are_a_list_or_a_mapping(tmp_path: Path, sites: str, names: list[str]) -> None:
    text = f"sites: {sites}\nstreams:\n{STREAM}    site: ams\n{QUERIES}"
    assert [site.name for site in load_topology(write(tmp_path, text)).sites] == names


# What does not, and what is said about it -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("", ["the file is empty; it needs at least `streams` and `queries`"]),
        ("# nothing but a remark\n", ["the file is empty"]),
        ("- a\n- b\n", ["line 1: the topology must be a mapping of keys to values"]),
        ("just text", ["line 1: the topology must be a mapping of keys to values"]),
        (QUERIES, ["line 1: the topology has no streams; add a `streams:` mapping"]),
        (f"streams:\n{STREAM}", ["line 1: the topology has no queries; add a `queries:` mapping"]),
        (f"streams:\n{QUERIES}", ["the topology has no streams"]),
        (f"streams: [a]\n{QUERIES}", ["line 1: streams must be a mapping of keys to values"]),
        # YAML
        ("streams:\n  a: {schema: [}\n", ["line 2, column 16: not valid YAML: while parsing a flow node, ",
                                           "expected the node content"]),
        ("streams:\n\ta: 1\n", ["line 2, column 1: not valid YAML: ", "cannot start any token"]),
        ("streams: a: b\n", ["line 1, column 11: not valid YAML: mapping values are not allowed here"]),
        ("streams: *nobody\n", ["line 1, column 10: not valid YAML: found undefined alias 'nobody'"]),
        ("a: 1\n---\nb: 2\n", ["line 2, column 1: not valid YAML: expected a single document in the stream, but"]),
        ("streams:\n  a\x07: 1\n", ["line 2: not valid YAML: the character U+0007 is not allowed; remove it"]),
        ("streams: &s\n  a:\n    b: *s\n", ["line 3: the anchor contains itself"]),
        ("streams:\n  ? [a, b]\n  : c\n", ["line 2: a key must be one word, not a list or a mapping"]),
        ("streams:\n  a: {<<: nothing}\n", ["line 2: what is merged with << must be a mapping of keys to values"]),
        # Unknown keys
        (f"sights: [here]\nstreams:\n{STREAM}{QUERIES}",
         ["line 1: unknown key 'sights' in the topology; did you mean 'sites'? ",
          "known: adapt, batch_interval, default_link, durability, link_transport, links, queries, sites, stats_file"]),
        (f"durability: disk\nstreams:\n{STREAM}{QUERIES}",
         ["line 1: unknown durability 'disk'; known: power, process"]),
        (f"adapt: {{mode: dno}}\nstreams:\n{STREAM}{QUERIES}",
         ["line 1: adapt: unknown mode 'dno'; did you mean 'dnu'? known: cnu, dnu, off, planner"]),
        (f"adapt: {{threshold: 1}}\nstreams:\n{STREAM}{QUERIES}",
         ["line 1: adapt of the topology has no mode; write mode: cnu, dnu, planner or off"]),
        (with_query("    sql: SELECT\n    adapt: {mode: cnu, treshold: 1}"),
         ["line 9: unknown key 'treshold' in adapt of query 'q'; did you mean 'threshold'?"]),
        (with_query("    sql: SELECT\n    adapt: {mode: cnu, threshold: 0}"),
         ["line 9: adapt: threshold must be positive, not 0; 0.2 means that a cost has changed by 20%"]),
        (with_query("    sql: SELECT\n    adapt: {mode: cnu, min_interval: soon}"),
         ["line 9: adapt: min_interval: "]),
        (with_query("    sql: SELECT\n    adapt: {mode: cnu, min_interval: 0 s}"),
         ["line 9: adapt: min_interval '0 s' must be positive"]),
        (with_query("    sql: SELECT\n    adapt: cnu\n    planner: greedy"),
         ["query 'q': adapt mode cnu makes its own plans; remove planner, or set mode: planner"]),
        (with_query("    sql: SELECT\n    adapt: planner\n    plan: {a: [{join: b}]}"),
         ["query 'q' has a plan, which does not change by itself; remove plan, or set adapt: {mode: off}"]),
        (with_stream("    schema: x\n    event_tme: ts"),
         ["line 4: unknown key 'event_tme' in stream 'a'; did you mean 'event_time'? ",
          "known: event_time, idle_timeout, late, schema, site, source, stats, watermark"]),
        (with_stream(f"    schema: {SCHEMA}\n    event_time: ts\n    source:\n      format: csv\n      pth: x"),
         ["line 7: unknown key 'pth' in the source of stream 'a'; did you mean 'path'? known: format, options, path"]),
        (with_stream(f"    schema: {SCHEMA}\n    event_time: ts\n    source: {{format: csv}}\n    late: {{to: x}}"),
         ["line 6: unknown key 'to' in late of stream 'a'; known: format, options, path"]),
        (with_query("    SQL: SELECT"), ["line 8: unknown key 'SQL' in query 'q'; did you mean 'sql'? ",
                                         "known: adapt, allow_cross, assume_defaults, checkpoint, errors, failed, "
                                         "group_early, limits, objective, partition, parts, plan, planner, sink, "
                                         "site, sql, start"]),
        (with_query("    sql: SELECT\n    sink: {fromat: parquet}"),
         ["line 9: unknown key 'fromat' in the sink of query 'q'; did you mean 'format' or 'compact'?"]),
        (f"sites:\n  here: {{cores: 4}}\nstreams:\n{STREAM}{QUERIES}",
         ["line 2: unknown key 'cores' in site 'here'; none are known"]),
        (f"streams:\n{STREAM.replace('a:', 'a: &a', 1)}  b:\n    <<: *a\n    waterMark: 1 second\n{QUERIES}",
         ["line 8: unknown key 'waterMark' in stream 'b'; did you mean 'watermark'?"]),
        # Duplicates
        (f"streams:\n{STREAM}{STREAM}{QUERIES}", ["line 6: duplicate name 'a', first given on line 2"]),
        (f"streams:\n{STREAM}{STREAM.replace('  a:', '  A:')}{QUERIES}",
         ["line 6: duplicate stream name 'A' (case does not count), first given on line 2; rename one"]),
        (f"streams:\n{STREAM}    schema: x\n{QUERIES}", ["line 6: duplicate name 'schema', first given on line 3"]),
        (f"streams:\n{STREAM}{QUERIES}  q:\n    sql: SELECT\n", ["line 9: duplicate name 'q', first given on line 7"]),
        (f"streams:\n{STREAM}{QUERIES}  Q:\n    sql: SELECT\n",
         ["line 9: duplicate query name 'Q' (case does not count), first given on line 7"]),
        (f"sites: [here, Here]\nstreams:\n{STREAM}{QUERIES}",
         ["line 1: duplicate site name 'Here' (case does not count), first given on line 1"]),
        # Names
        (f"streams:\n{STREAM.replace('  a:', '  my-stream:')}{QUERIES}",
         ["line 2: stream name 'my-stream' must be letters, digits and underscores, not starting with a digit"]),
        (f"streams:\n{STREAM}queries:\n  2nd: {{sql: SELECT}}\n", ["line 7: query name '2nd' must be letters"]),
        (f"sites:\n  - here\n  - over there\nstreams:\n{STREAM}{QUERIES}", ["line 3: site name 'over there' must be"]),
        # Sites
        (f"sites: here\nstreams:\n{STREAM}{QUERIES}", ["line 1: sites must be a list of names or a mapping"]),
        (f"sites: []\nstreams:\n{STREAM}{QUERIES}", ["line 1: sites must be a list of names or a mapping"]),
        (f"sites: [[here]]\nstreams:\n{STREAM}{QUERIES}", ["line 1: a site must be a single value"]),
        (f"sites: [ams, fra]\nstreams:\n{STREAM}    site: amss\n{QUERIES}",
         ["line 7: stream 'a': unknown site 'amss'; did you mean 'ams'? known: ams, fra"]),
        (f"sites: [ams, fra]\nstreams:\n{STREAM}{QUERIES}",
         ["line 3: stream 'a' has no site; say which of them with `site:`: ams, fra"]),
    ],
)  # fmt: skip
def test_errors_have_file_and_line(tmp_path: Path, text: str, fragments: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    message = str(caught.value)
    assert message.startswith(f"{path}")
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


ALL_BUT = {
    "schema": f"    schema: {SCHEMA}",
    "event_time": "    event_time: ts",
    "source": "    source: {format: parquet, path: data/a}",
}


@pytest.mark.parametrize("missing", list(ALL_BUT))
def test_a_stream_needs_its_schema_event_time_and_source(tmp_path: Path, missing: str) -> None:
    lines = "\n".join(line for key, line in ALL_BUT.items() if key != missing)
    with pytest.raises(TopologyError, match=rf"line 2: stream 'a' has no {missing}"):
        load_topology(write(tmp_path, with_stream(lines)))


@pytest.mark.parametrize(
    ("key", "line", "message"),
    [
        ("schema", "schema:", "line 3: schema must be a single value"),
        ("schema", "schema: ''", "stream 'a' needs a schema, such as schema: \"k long, ts timestamp\""),
        ("schema", "schema: ts", "schema: 'ts' is not a column; write it like \"k long, ts timestamp\""),
        ("schema", "schema: 'ts timestamp,'", "schema: '' is not a column"),
        ("schema", "schema: 'ts timestamp, k array<int'", "schema: unbalanced brackets or quotes in 'ts timestamp, k"),
        ("schema", "schema: 'ts timestamp, k long, k int'", "schema: duplicate column names: k"),
        ("schema", "schema: 'ts timestamp, k long, K int'", "duplicate column names in its schema: K, k"),
        ("event_time", "event_time: [ts]", "line 4: event_time must be a single value"),
        ("event_time", "event_time: tss", "event_time 'tss' is not one of its columns; did you mean 'ts'? known: k,"),
        ("event_time", "event_time: k", "event_time 'k' has type long; it must be timestamp or timestamp_ntz (cast"),
        ("source", "source: data/a", "line 5: the source of stream 'a' must be a mapping of keys to values"),
        ("source", "source: {path: data/a}", "line 5: the source of stream 'a' has no format"),
        ("source", "source: {format: csv, path: [x]}", "line 5: path must be a single value"),
        ("source", "source: {format: csv, options: 1}", "line 5: options of the source of stream 'a' must be a map"),
        ("source", "source: {format: csv, options: {a: [1]}}", "line 5: option 'a' must be a single value"),
    ],
)
def test_wrong_values_of_a_stream(tmp_path: Path, key: str, line: str, message: str) -> None:
    lines = "\n".join(f"    {line}" if name == key else text for name, text in ALL_BUT.items())
    with pytest.raises(TopologyError) as caught:
        load_topology(write(tmp_path, with_stream(lines)))
    assert message in str(caught.value)
    assert "topology.yaml, line " in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("watermark: -1 second", "stream 'a': watermark '-1 second' is negative; use 0 seconds or more"),
        ("watermark: 10", "watermark: duration '10' is not understood; write it like '10 seconds' or '1 minute 30"),
        ("watermark: 1 fortnight", "watermark: duration '1 fortnight': unknown unit 'fortnight'; units: microsecond,"),
        ("watermark: 1 month", "watermark: duration '1 month': a month has no fixed length; give it in days"),
        ("watermark: 0.1 us", "watermark: duration '0.1 us' is finer than a microsecond"),
        (
            "idle_timeout: 0 seconds",
            "line 2: stream 'a': idle_timeout '0 seconds' must be positive; write none for",
        ),
        ("idle_timeout: -1 minute", "line 2: stream 'a': idle_timeout '-1 minute' must be positive"),
        ("idle_timeout: never", "line 2: stream 'a': idle_timeout: duration 'never' is not understood; write it like"),
        ("idle_timeout:", "line 6: idle_timeout must be a single value"),
        ("late: {format: parquet}", "stream 'a': late needs a file format and a path"),
        ("late: {format: console, path: x}", "stream 'a': late needs a file format and a path"),
        ("late: {path: late}", "line 6: late of stream 'a' has no format"),
        ("late: late/a", "line 6: late of stream 'a' must be a mapping of keys to values"),
    ],
)
def test_wrong_values_of_what_a_stream_may_have(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(write(tmp_path, with_stream("\n".join([*ALL_BUT.values(), f"    {line}"]))))
    assert message in str(caught.value)
    assert "topology.yaml, line " in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("    sink: {format: parquet, path: out}", "line 7: query 'q' has no sql"),
        ("    sql:", "line 8: sql must be a single value"),
        ("    sql: '  '", "line 7: query 'q' has no SQL text"),
        ("    sql: x\n    allow_cross: yes", "line 9: allow_cross must be true or false"),
        ("    sql: x\n    allow_cross: [true]", "line 9: allow_cross must be true or false"),
        ("    sql: x\n    start: tomorrow", "query 'q': start 'tomorrow' is not a timestamp; write it like 2025-01-"),
        ("    sql: x\n    start: 2025-02-30", "start '2025-02-30' is not a timestamp"),
        ("    sql: x\n    sink: parquet", "line 9: the sink of query 'q' must be a mapping of keys to values"),
        ("    sql: x\n    sink: {path: out}", "line 9: the sink of query 'q' has no format"),
        ("    sql: x\n    checkpoint: {path: out}", "line 9: checkpoint must be a single value"),
    ],
)
def test_wrong_values_of_a_query(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(write(tmp_path, with_query(lines)))
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(TopologyError) as caught:
        load_topology(missing)
    assert str(caught.value) == f"{missing}: there is no such file"
    with pytest.raises(TopologyError) as caught:
        load_topology(tmp_path)
    assert str(caught.value) == f"{tmp_path}: cannot be read: Is a directory"
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("# caf\u00e9\nstreams: {}".encode("latin-1"))
    with pytest.raises(TopologyError, match=r"latin.yaml: not text in UTF-8 \(byte 5: .*\); save it as UTF-8"):
        load_topology(latin)


# Several sites --------------------------------------------------------------------------------------------------------


SEVERAL = """\
sites: {ams: , fra: , nyc: }
links:
  - {between: [ams, nyc], latency: 80 ms, bandwidth: 100 Mbps, price_per_gb: 0.02}
  - between: [fra, ams]
    latency: 1 second 5 ms
default_link: {latency: 0 ms, bandwidth: 2.5gbps}
link_transport: {kind: directory, path: links, max_pending: 1.5 GB}
streams:
  a: &a
    site: ams
    schema: "k long, ts timestamp"
    event_time: ts
    idle_timeout: 90 seconds
    source: {format: parquet, path: data/a}
  b: {<<: *a, site: fra, idle_timeout: none}
  c: {<<: *a, site: nyc}
queries:
  q:
    sql: SELECT a.k AS k FROM a [ROWS 1], b [ROWS 1], c [ROWS 1] WHERE a.k = b.k AND b.k = c.k
    site: nyc
    plan:
      c: [{join: b}, {join: a, method: sm-s2}]
      a: [{join: b, method: SM-D1}, {join: c, method: SP-S, at: nyc, bloom: false}]
      b:
        - join: a
          method: sm-D1
          at: fra
          bloom: true
        - join: c
  r: {sql: SELECT, planner: greedy, site: ams}
  s: {sql: SELECT}
"""


def test_every_key_of_several_sites_is_read(tmp_path: Path) -> None:
    topology = load_topology(write(tmp_path, SEVERAL))
    assert topology.site_names == ("ams", "fra", "nyc")
    assert topology.links == (
        Link(("ams", "nyc"), latency_us=80_000, bandwidth_bps=100e6, price_per_gb=0.02),
        Link(("fra", "ams"), latency_us=1_005_000),
    )
    assert topology.default_link == Link(EVERY_PAIR, bandwidth_bps=2.5e9)
    assert topology.link_transport == LinkTransport("directory", str(tmp_path / "links"), 1_500_000_000)
    assert [stream.idle_timeout_us for stream in topology.streams] == [90_000_000, None, 90_000_000]
    q, r, s = topology.queries
    # The heads come in the order of the file, and what is left out is a simple join at the other stream's site.
    assert q.plan == (
        HeadSteps("c", (PlanStep("b", "SP-D"), PlanStep("a", "SM-S2"))),
        HeadSteps("a", (PlanStep("b", "SM-D1"), PlanStep("c", "SP-S", at="nyc"))),
        HeadSteps("b", (PlanStep("a", "SM-D1", at="fra", bloom=True), PlanStep("c", "SP-D"))),
    )
    assert (q.site, q.planner) == ("nyc", None)
    assert (r.site, r.plan, r.planner) == ("ams", None, "greedy")
    assert (s.site, s.plan, s.planner) == (None, None, None)


def test_links_are_the_same_in_either_direction(tmp_path: Path) -> None:
    topology = load_topology(write(tmp_path, SEVERAL))
    for a in topology.site_names:
        for b in topology.site_names:
            link = topology.link(a, b)
            assert link == topology.link(b, a)
            assert set(link.between) == {a, b}
    assert topology.link("nyc", "ams") is topology.links[0]
    assert topology.link("ams", "fra") is topology.links[1]
    assert topology.link("nyc", "fra") == Link(("fra", "nyc"), bandwidth_bps=2.5e9)


@pytest.mark.parametrize(
    ("written", "bandwidth_bps"),
    [
        ("1 bps", 1.0),
        ("56 kbps", 56e3),
        ("56KBPS", 56e3),
        ("0.5 mbps", 5e5),
        ("'  10  Gbps '", 10e9),
        ("+3 Mbps", 3e6),
    ],
)
def test_bandwidths(tmp_path: Path, written: str, bandwidth_bps: float) -> None:
    topology = load_topology(write(tmp_path, with_sites(f"default_link: {{bandwidth: {written}}}")))
    assert topology.link("ams", "nyc").bandwidth_bps == bandwidth_bps


@pytest.mark.parametrize(
    ("written", "size"),
    [("1 B", 1), ("64 kB", 64_000), ("64kb", 64_000), ("256 MB", 256_000_000), ("2.5 GB", 2_500_000_000)],
)
def test_sizes(tmp_path: Path, written: str, size: int) -> None:
    topology = load_topology(write(tmp_path, with_sites(f"link_transport: {{max_pending: {written}}}")))
    assert topology.link_transport == LinkTransport(max_pending_bytes=size)


@pytest.mark.parametrize(("path", "meant"), [("/links", "/links"), ("file:///links", "file:///links")])
def test_a_path_of_the_transport_may_be_absolute(tmp_path: Path, path: str, meant: str) -> None:
    topology = load_topology(write(tmp_path, with_sites(f"link_transport: {{path: {path}}}")))
    assert topology.link_transport == LinkTransport("directory", meant)


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_read_in_any_case(tmp_path: Path, method: str) -> None:
    for written in (method, method.lower(), method.title()):
        text = with_plan(f"    plan: {{a: [{{join: b, method: {written}}}]}}")
        assert load_topology(write(tmp_path, text)).query().plan == (HeadSteps("a", (PlanStep("b", method),)),)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        # Links
        ("links:", "line 2: links must be a list, such as links: [{between: [ams, nyc], latency: 80 ms}]"),
        ("links: {between: [ams, nyc]}", "line 2: links must be a list, such as links: [{between"),
        ("links: [ams]", "line 2: a link must be a mapping of keys to values"),
        ("links:\n  - latency: 1 ms", "line 3: a link has no between; say which two sites it joins, such as between"),
        ("links:\n  - between: [ams, nyc]\n    latncy: 1 ms",
         "line 4: unknown key 'latncy' in a link; did you mean 'latency'? known: bandwidth, between, latency"),
        ("links: [{between: ams}]", "line 2: between must be a list, such as between: [ams, nyc]"),
        ("links: [{between: [ams]}]", "line 2: between must name two sites, such as between: [ams, nyc]"),
        ("links: [{between: [ams, fra, nyc]}]", "line 2: between must name two sites"),
        ("links: [{between: [ams, [nyc]]}]", "line 2: a site must be a single value"),
        ("links:\n  - latency: 1 ms\n    between: [ams, nycc]",
         "line 4: the link between 'ams' and 'nycc': unknown site 'nycc'; did you mean 'nyc'? known: ams, fra, nyc"),
        ("links: [{between: [AMS, nyc]}]", "line 2: the link between 'AMS' and 'nyc': unknown site 'AMS'; did you"),
        ("links:\n  - between: [nyc, nyc]",
         "line 3: the link between 'nyc' and 'nyc' joins a site to itself; name two sites"),
        ("links:\n  - between: [ams, nyc]\n  - between: [ams, nyc]",
         "line 4: the link between 'ams' and 'nyc' is given twice (in either order), first on line 3; remove one"),
        ("links:\n  - between: [ams, nyc]\n  - between: [ams, fra]\n  - between: [nyc, ams]",
         "line 5: the link between 'nyc' and 'ams' is given twice (in either order), first on line 3; remove one"),
        ("links:\n  - between: [ams, nyc]\n    latency: 80",
         "line 4: the link between 'ams' and 'nyc': latency: duration '80' is not understood; write it like"),
        ("links:\n  - between: [ams, nyc]\n    latency: 1 hop",
         "line 4: the link between 'ams' and 'nyc': latency: duration '1 hop': unknown unit 'hop'"),
        ("links:\n  - between: [ams, nyc]\n    latency:", "line 4: latency must be a single value"),
        ("links: [{between: [ams, nyc], latency: -80 ms}]",
         "line 2: the link between 'ams' and 'nyc': latency -80 milliseconds is negative; use 0 ms or more"),
        ("links:\n  - between: [ams, nyc]\n    bandwidth: 100",
         "line 4: the link between 'ams' and 'nyc': bandwidth '100' is not understood; write it like '100 Mbps'"),
        ("links:\n  - between: [ams, nyc]\n    bandwidth: 100 MB",
         "line 4: the link between 'ams' and 'nyc': bandwidth '100 MB': unknown unit 'MB'; units: bps, kbps, Mbps"),
        ("links: [{between: [ams, nyc], bandwidth: 1e3 bps}]", "line 2: the link between 'ams' and 'nyc': bandwidth '"),
        ("links: [{between: [ams, nyc], bandwidth: []}]", "line 2: bandwidth must be a single value"),
        ("links: [{between: [ams, nyc], bandwidth: 0 Mbps}]",
         "line 2: the link between 'ams' and 'nyc': bandwidth must be positive, not 0 bps; leave it out for no"),
        ("links: [{between: [ams, nyc], bandwidth: -1 kbps}]", "bandwidth must be positive, not -1000 bps"),
        ("links:\n  - between: [ams, nyc]\n    price_per_gb: 2 cents",
         "line 4: price_per_gb must be a number, not '2 cents'"),
        ("links: [{between: [ams, nyc], price_per_gb: -0.5}]",
         "line 2: the link between 'ams' and 'nyc': price_per_gb must be 0 or more, not -0.5"),
        ("links: [{between: [ams, nyc], price_per_gb: nan}]", "price_per_gb must be 0 or more, not nan"),
        # The default link
        ("default_link: 80 ms", "line 2: default_link must be a mapping of keys to values"),
        ("default_link:\n  between: [ams, nyc]",
         "line 3: unknown key 'between' in default_link; known: bandwidth, latency, price_per_gb"),
        ("default_link:\n  latency: soon", "line 3: default_link: latency: duration 'soon' is not understood"),
        ("default_link: {latency: -2 s}", "line 2: default_link: latency -2 seconds is negative; use 0 ms or more"),
        ("default_link: {bandwidth: fast}", "line 2: default_link: bandwidth 'fast' is not understood"),
        ("default_link: {price_per_gb: inf}", "line 2: default_link: price_per_gb must be 0 or more, not inf"),
        # The transport
        ("link_transport: directory", "line 2: link_transport must be a mapping of keys to values"),
        ("link_transport:\n  pth: links",
         "line 3: unknown key 'pth' in link_transport; did you mean 'path'? known: key_env, key_file, kind, max_"),
        ("link_transport: {kind: kafak}", "line 2: link_transport: unknown kind 'kafak'; did you mean 'kafka'?"),
        ("link_transport: {kind: kafka}", "line 2: link_transport: kind kafka needs to know its brokers, such as"),
        ("link_transport: {kind: kafka, options: {a: [1]}}", "line 2: option 'a' must be a single value"),
        ("link_transport: {path: [links]}", "line 2: path must be a single value"),
        ("link_transport:\n  max_pending: 256",
         "line 3: link_transport: max_pending '256' is not understood; write it like '256 MB'"),
        ("link_transport:\n  max_pending: 1 MiB",
         "line 3: link_transport: max_pending '1 MiB': unknown unit 'MiB'; units: B, kB, MB, GB"),
        ("link_transport: {max_pending: 0.5 B}",
         "line 2: link_transport: max_pending '0.5 B' is not a whole number of bytes; round it"),
        ("link_transport: {max_pending: 0 MB}", "line 2: link_transport: max_pending must be positive, not 0 B"),
    ],
)  # fmt: skip
def test_wrong_links(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(write(tmp_path, with_sites(lines)))
    assert message in str(caught.value)
    assert "topology.yaml, line " in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("    site: nycc", "line 11: query 'q': unknown site 'nycc'; did you mean 'nyc'? known: ams, fra, nyc"),
        ("    site: [nyc]", "line 11: site must be a single value"),
        ("    planner: [greedy]", "line 11: planner must be a single value"),
        ("    planner: greedy\n    plan: {a: [{join: b}]}",
         "line 9: query 'q' has both a plan and a planner; keep one of them"),
        ("    plan: greedy", "line 11: the plan of query 'q' must be a mapping of keys to values"),
        ("    plan:", "line 11: the plan of query 'q' must be a mapping of keys to values"),
        ("    plan: {}", "line 9: query 'q': the plan is empty; give the steps of each alias or no plan"),
        ("    plan:\n      a: b",
         "line 12: head 'a' of the plan of query 'q' must be a list, such as a: [{join: b, method: SM-D1}]"),
        ("    plan:\n      a: [{join: b}]\n      A: [{join: b}]",
         "line 13: duplicate head name 'A' (case does not count), first given on line 12; rename one"),
        ("    plan:\n      a: [b]",
         "line 12: a step of head 'a' in the plan of query 'q' must be a mapping of keys to values"),
        ("    plan:\n      a:\n        - join: b\n        - method: SP-S",
         "line 14: a step of head 'a' in the plan of query 'q' has no join"),
        ("    plan:\n      a:\n        - join: b\n          methd: SP-S",
         "line 14: unknown key 'methd' in a step of head 'a' in the plan of query 'q'; did you mean 'method'? "
         "known: at, bloom, join, method"),
        ("    plan:\n      a:\n        - {join: b}\n        - {join: c, method: sm-d}",
         "line 14: the step that joins 'c': unknown method 'SM-D'; did you mean 'SM-D2' or 'SM-D1'? "
         "known: SM-D1, SM-D2, SM-S1, SM-S2, SP-D, SP-S"),
        ("    plan:\n      a:\n        - join: b\n          at: nic",
         "line 14: a step of head 'a' in the plan of query 'q': unknown site 'nic'; did you mean 'nyc'? known: ams"),
        ("    plan: {a: [{join: b, at: [nyc]}]}", "line 11: at must be a single value"),
        ("    plan: {a: [{join: [b]}]}", "line 11: join must be a single value"),
        ("    plan: {a: [{join: b, method: }]}", "line 11: method must be a single value"),
        ("    plan: {a: [{join: b, method: SM-S1, bloom: 1}]}", "line 11: bloom must be true or false"),
        ("    plan:\n      a:\n        - {join: b, method: sp-s, bloom: true}",
         "line 13: the step that joins 'b': bloom replaces the set of keys that an SM method sends, and SP-S "
         "sends none; leave bloom out or choose an SM method"),
        ("    plan: {a: [{join: b, bloom: true}]}", "and SP-D sends none; leave bloom out or choose an SM method"),
        ("    plan:\n      a: [{join: b}, {join: B}]",
         "line 12: head 'a' joins 'B' twice; join every other alias once"),
        ("    plan:\n      a: [{join: a}]", "line 12: head 'a' joins 'a' twice; join every other alias once"),
    ],
)  # fmt: skip
def test_wrong_sites_and_plans_of_a_query(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(write(tmp_path, with_plan(lines)))
    assert message in str(caught.value)
    assert "topology.yaml, line " in str(caught.value)


def test_the_former_path_of_load_topology_still_works() -> None:
    assert model.load_topology is load_topology
    with pytest.raises(AttributeError, match="has no attribute 'load_toplogy'"):
        _ = model.load_toplogy


def test_adapt_is_read_for_all_queries_and_for_one(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(
        f"adapt: {{mode: planner, threshold: 0.3, min_interval: 2 minutes}}\nstreams:\n{STREAM}queries:\n"
        "  p: {sql: SELECT a.k FROM a}\n"
        "  q: {sql: SELECT a.k FROM a, adapt: off}\n"
        "  r: {sql: SELECT a.k FROM a, adapt: {mode: dnu}}\n"
        "  s: {sql: SELECT a.k FROM a, plan: {a: [{join: b}]}}\n"
    )
    topology = load_topology(path)
    assert topology.adapt == Adapt("planner", 0.3, "2 minutes")
    assert [topology.adapt_of(query).mode for query in topology.queries] == ["planner", "off", "dnu", "off"]
    assert not model.Topology(topology.streams).adapt.is_on
