"""`watersmeet top` has everything that matters on a small terminal."""

import gzip
from pathlib import Path

import pytest
from rich.console import Console

from watersmeet.cli import top
from watersmeet.dashboard import view
from watersmeet.dashboard.model import RunModel
from watersmeet.metrics.events import from_json

RECORDED = Path(__file__).parents[1] / "dashboard" / "recorded.jsonl.gz"  # a run of four sites and twelve links


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 30), (160, 50)])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    model = RunModel()
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        for line in file:
            model.read("run", *from_json(line))
    now, notes = view.snapshot(model, model.last_at), view.timeline(model)
    console = Console(width=width, height=height)
    with console.capture() as captured:
        console.print(top._screen(now, notes, height))
    lines = captured.get().splitlines()
    assert len(lines) <= height and max(map(len, lines)) <= width
    text = "\n".join(lines)
    for site in now["sites"]:
        assert f"\n{site['name']} " in text
    assert "everywhere" in text and f"{now['queries'][0]['answers']:,.0f}" in text and ", sent " in lines[0]
    assert notes[-1]["title"] in lines[-1], "the latest is always there"
    used = [link for link in now["links"] if link["bytes"]]
    most = max(used, key=lambda link: link["bytes"])
    assert f"{most['from']} -> {most['to']}" in text
    named = sum(f"{link['from']} -> {link['to']} " in text for link in used)
    assert f"\n{len(used) - named} more " in text if named < len(used) else "\n0 more" not in text
