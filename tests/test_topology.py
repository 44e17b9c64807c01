"""The topology file as a contract: every key it has, and for every slip a sentence with its place."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from watersmeet.errors import InputError, TopologyError, UnknownStream
from watersmeet.topology import Query, Sink, Site, Source, Stream, Topology, load_topology, parse_schema

# The file of issue 2, to the letter but for the two streams that it leaves out.
ISSUE_EXAMPLE = """\
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


def stream(**changes: Any) -> Stream:
    given: dict[str, Any] = {"event_time": "ts", "schema": SCHEMA, "source": Source("parquet", "data/a")}
    return Stream(**({"name": "a"} | given | changes))


def frame(*dtypes: tuple[str, str], streaming: bool = True) -> Any:
    """What a stream uses of a PySpark DataFrame."""
    return SimpleNamespace(columns=[name for name, _ in dtypes], dtypes=list(dtypes), isStreaming=streaming)


# What loads -----------------------------------------------------------------------------------------------------------


def test_the_example_of_the_issue_loads(tmp_path: Path) -> None:
    topology = load_topology(write(tmp_path, ISSUE_EXAMPLE))
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


@pytest.mark.parametrize(
    ("ddl", "types"),
    [
        ("k LONG, ts TIMESTAMP", {"k": "long", "ts": "timestamp"}),
        ("k: long, ts: timestamp_ntz", {"k": "long", "ts": "timestamp_ntz"}),
        ("k long not null comment 'a, b', ts timestamp", {"k": "long", "ts": "timestamp"}),
        ("`a b` decimal(10, 2), `x``y` int", {"a b": "decimal(10,2)", "x`y": "int"}),
        ("s struct<a: int, b: array<string>>, m map<string, int>",
         {"s": "struct<a:int,b:array<string>>", "m": "map<string,int>"}),
    ],
)  # fmt: skip
def test_schemas_are_read_as_spark_writes_them(ddl: str, types: dict[str, str]) -> None:
    assert parse_schema(ddl) == types


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
        ("streams: &s\n  a:\n    b: *s\n", ["line 3: what an anchor names holds itself"]),
        ("streams:\n  ? [a, b]\n  : c\n", ["line 2: a key must be one word, not a list or a mapping"]),
        ("streams:\n  a: {<<: nothing}\n", ["line 2: what is merged with << must be a mapping of keys to values"]),
        # Unknown keys
        (f"sights: [here]\nstreams:\n{STREAM}{QUERIES}",
         ["line 1: unknown key 'sights' in the topology; did you mean 'sites'? known: queries, sites, streams"]),
        (with_stream("    schema: x\n    event_tme: ts"),
         ["line 4: unknown key 'event_tme' in stream 'a'; did you mean 'event_time'? ",
          "known: event_time, late, schema, site, source, watermark"]),
        (with_stream(f"    schema: {SCHEMA}\n    event_time: ts\n    source:\n      format: csv\n      pth: x"),
         ["line 7: unknown key 'pth' in the source of stream 'a'; did you mean 'path'? known: format, options, path"]),
        (with_stream(f"    schema: {SCHEMA}\n    event_time: ts\n    source: {{format: csv}}\n    late: {{to: x}}"),
         ["line 6: unknown key 'to' in late of stream 'a'; known: format, options, path"]),
        (with_query("    SQL: SELECT"), ["line 8: unknown key 'SQL' in query 'q'; did you mean 'sql'? ",
                                         "known: allow_cross, checkpoint, sink, sql, start"]),
        (with_query("    sql: SELECT\n    sink: {fromat: parquet}"),
         ["line 9: unknown key 'fromat' in the sink of query 'q'; did you mean 'format'?"]),
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
def test_what_is_wrong_with_the_file_is_told_with_its_place(tmp_path: Path, text: str, fragments: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    told = str(caught.value)
    assert told.startswith(f"{path}")
    assert "\n" not in told
    for fragment in fragments:
        assert fragment in told


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
    ("key", "line", "told"),
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
def test_wrong_values_of_a_stream(tmp_path: Path, key: str, line: str, told: str) -> None:
    lines = "\n".join(f"    {line}" if name == key else text for name, text in ALL_BUT.items())
    with pytest.raises(TopologyError) as caught:
        load_topology(write(tmp_path, with_stream(lines)))
    assert told in str(caught.value)
    assert "topology.yaml, line " in str(caught.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("watermark: -1 second", "stream 'a': watermark '-1 second' is negative; use 0 seconds or more"),
        ("watermark: 10", "watermark: duration '10' is not understood; write it like '10 seconds' or '1 minute 30"),
        ("watermark: 1 fortnight", "watermark: duration '1 fortnight': unknown unit 'fortnight'; units: microsecond,"),
        ("watermark: 1 month", "watermark: duration '1 month': a month has no fixed length; give it in days"),
        ("watermark: 0.1 us", "watermark: duration '0.1 us' is finer than a microsecond"),
        ("late: {format: parquet}", "stream 'a': late needs a file format and a path"),
        ("late: {format: console, path: x}", "stream 'a': late needs a file format and a path"),
        ("late: {path: late}", "line 6: late of stream 'a' has no format"),
        ("late: late/a", "line 6: late of stream 'a' must be a mapping of keys to values"),
    ],
)
def test_wrong_values_of_what_a_stream_may_have(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(write(tmp_path, with_stream("\n".join([*ALL_BUT.values(), f"    {line}"]))))
    assert told in str(caught.value)
    assert "topology.yaml, line " in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "told"),
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
def test_wrong_values_of_a_query(tmp_path: Path, lines: str, told: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(write(tmp_path, with_query(lines)))
    assert told in str(caught.value)


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


# Built in Python ------------------------------------------------------------------------------------------------------


def test_a_stream_built_in_python_takes_a_dataframe() -> None:
    given = frame(("K", "bigint"), ("TS", "timestamp"))
    built = Stream("a", "ts", frame=given)
    assert built.columns == ("K", "TS")
    assert built.event_time_column == "TS"
    assert built.types == {"K": "bigint", "TS": "timestamp"}


@pytest.mark.parametrize(
    ("changes", "told"),
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
        ({"schema": "ts"}, "stream 'a': schema: 'ts' is not a column"),
        ({"late": Sink()}, "stream 'a': late needs a file format and a path"),
    ],
)  # fmt: skip
def test_streams_built_in_python_are_checked(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(TopologyError) as caught:
        stream(**changes)
    assert told in str(caught.value)


def test_queries_built_in_python_are_checked() -> None:
    for changes, told in (
        ({"name": "q-1"}, "query name 'q-1' must be letters"),
        ({"sql": " \n"}, "query 'q' has no SQL text"),
        ({"start": "noon"}, "query 'q': start 'noon' is not a timestamp"),
    ):
        with pytest.raises(TopologyError, match=told):
            Query(**({"name": "q", "sql": "SELECT"} | changes))


def test_topologies_built_in_python_are_checked() -> None:
    a, q = stream(), Query("q", "SELECT 1")
    for arguments, told in (
        (((a, stream(name="A")),), r"duplicate stream names \(case does not count\): A, a"),
        (((a,), (q, q)), r"duplicate query names \(case does not count\): q"),
        (((a,), (q,), (Site("here"), Site("Here"))), r"duplicate site names \(case does not count\): Here, here"),
        (((stream(site="hear"),),), r"stream 'a': unknown site 'hear'; did you mean 'here'\? known: here"),
    ):
        with pytest.raises(TopologyError, match=told):
            Topology(*arguments)


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
