"""What all benchmarks print: tables for people on stderr and as Markdown on stdout, and the machine they ran on."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
LEFT_ALIGNED = ("", "case", "correct?")
console = Console(stderr=True, width=None if sys.stderr.isatty() else 140)


def machine(reference: Path | None = None) -> dict[str, str]:
    """What the figures were measured on, and with which commits."""
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    facts = {
        "cpu": cpu or platform.processor() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "os": platform.platform(),
        "python": platform.python_version(),
        "java": java[0] if java else "?",
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
        "duckdb": version("duckdb"),
        "watersmeet": _commit(HERE),
    }
    return facts if reference is None else facts | {"watersmeet before": _commit(reference)}


def _commit(checkout: Path) -> str:
    head = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False)
    return commit.stdout.strip() if commit.returncode == 0 else "uncommitted"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def show(
    title: str, header: Sequence[str], lines: Sequence[Sequence[str]], facts: Mapping[str, str] | None = None
) -> None:
    """The table for people on the terminal, then as Markdown on stdout to paste, with the machine if it is given."""
    table = Table(title=title)
    for name in header:
        table.add_column(name, justify="left" if name in LEFT_ALIGNED else "right")
    for line in lines:
        table.add_row(*line)
    console.print(table)
    print(f"{title}\n")
    print(f"| {' | '.join(header)} |")
    print(f"|{'|'.join(' --- ' if name in LEFT_ALIGNED else ' ---: ' for name in header)}|")
    for line in lines:
        print(f"| {' | '.join(line)} |")
    print()
    if facts is not None:
        print(f"Machine: {', '.join(f'{name} {value}' for name, value in facts.items())}.")
