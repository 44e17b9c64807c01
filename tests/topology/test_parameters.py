"""`${name}` in a topology file."""

from pathlib import Path

import pytest

from watersmeet.errors import InputError
from watersmeet.topology.load import load_topology

TEXT = """\
parameters: {region: eu, keys: 3, tag: }
streams:
  a:
    schema: "k long, r string, ts timestamp"
    event_time: ts
    watermark: ${keys} seconds
    source: {format: generator, options: {rows: 10, column.k: "uniform 0 ${keys}"}}
queries:
  q:
    sql: SELECT x.k FROM a [RANGE 1 MINUTE] x, a [RANGE 1 MINUTE] y WHERE x.k = y.k AND x.r = '${region}'
    parts: ${keys}
    sink: {format: parquet, path: "out/${region}/$${region}"}
"""


def write(tmp_path: Path, text: str = TEXT) -> Path:
    path = tmp_path / "topology.yaml"
    path.write_text(text)
    return path


def test_parameters_stand_for_text_anywhere(tmp_path: Path) -> None:
    path = write(tmp_path)
    topology = load_topology(path)
    assert topology.query().sql.endswith("x.r = 'eu'") and topology.query().parts == 3
    assert topology.query().sink.path == str(tmp_path / "out/eu/${region}")
    source = topology.stream("a").source
    assert topology.stream("a").watermark_us == 3_000_000 and source is not None
    assert source.options["column.k"] == "uniform 0 3"
    given = load_topology(path, {"region": "us: {east}", "keys": "7"})
    assert given.query().sql.endswith("x.r = 'us: {east}'"), "a value is text, whatever is in it"
    assert given.query().parts == 7


@pytest.mark.parametrize(
    ("text", "given", "told"),
    [
        (TEXT, {"regoin": "eu"}, "unknown parameter 'regoin': not under `parameters:`; did you mean 'region'"),
        (TEXT.replace("'${region}'", "'${regoin}'"), {}, "line 10: unknown parameter 'regoin'; did you mean 'region'"),
        (TEXT.replace("'${region}'", "'${tag}'"), {}, "line 10: parameter 'tag' has no default; .*--set tag="),
        (TEXT.replace("tag:", "my tag:"), {}, "parameter 'my tag' must be letters"),
        (TEXT.replace("parts: ${keys}", "parts: ${region}"), {}, "line 11"),
    ],
)
def test_slips_are_told_with_the_line(tmp_path: Path, text: str, given: dict[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_topology(write(tmp_path, text), given)
