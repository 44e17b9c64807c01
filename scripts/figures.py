"""The page of all figures, made from the verdicts on the pages of the papers: `python scripts/figures.py --write`.

A verdict is a line `**Verdict** (`NAME`): ...` below the plot of an experiment, and is nowhere else.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
INDEX = DOCS / "reproduce/index.md"
PAGES = {
    "reproduce.md": "PMJoin",
    "reproduce-semijoin.md": "Semijoin",
    "reproduce-rjoin.md": "RJoin",
    "reproduce-adaptive.md": "Adaptive plans",
    "reproduce-pier.md": "PIER",
    "systems.md": "Systems beside each other",
}
_HEAD = """# Every figure, its verdict and its command

One line for each experiment of `watersmeet reproduce`: *matches* (what the paper says of it holds), *partly*,
*differs*, *other measure* (shown beside the published figures, but not the same quantity), or *ours* (no such figure in
the paper). The linked sections have the figures, setups, seeds and what was cut; where a plot of the paper could not be
read, its text is compared. The command of each line is `watersmeet reproduce NAME`; with `--quick` it is a first look,
with `--draws N` it runs the first N draws only, with `--here` it takes one core and no Spark. This page is made of the
verdicts on the others by `scripts/figures.py`.
"""
_VERDICT = re.compile(r"^\*\*Verdict\*\* \(`(?P<name>.+?)`\): (?P<text>.+)$", re.MULTILINE)


def verdicts(page: str) -> dict[str, str]:
    """The verdict of each experiment on a page, in their order."""
    found = _VERDICT.findall((DOCS / page).read_text("utf-8"))
    names = [name for name, _ in found]
    assert len(set(names)) == len(names), f"{page} has two verdicts of one experiment"
    return dict(found)


def index() -> str:
    """The page of all figures."""
    parts = [_HEAD]
    for page, title in PAGES.items():
        lines = "".join(f"| ![]({name}.svg) | `{name}` | {text} |\n" for name, text in verdicts(page).items())
        parts.append(f"\n## [{title}](../{page})\n\n| | experiment | verdict |\n| --- | --- | --- |\n{lines}")
    return "".join(parts)


if __name__ == "__main__":
    if "--write" in sys.argv:
        INDEX.write_text(index(), "utf-8")
    else:
        print(index(), end="")
