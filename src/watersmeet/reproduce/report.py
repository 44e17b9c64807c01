"""What an experiment leaves behind: its rows as CSV, its plot as PNG and SVG, and a table of means as plain text."""

import csv
from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Experiment, Row, averaged, half_width


def write(experiment: Experiment, rows: Sequence[Row], directory: Path) -> list[Path]:
    """Write all rows and the plot into a directory, and tell the files."""
    directory.mkdir(parents=True, exist_ok=True)
    table = directory / f"{experiment.name}.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, experiment.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: "not run" if row[name] is None else row[name] for name in experiment.columns} for row in rows
        )
    plots = [directory / f"{experiment.name}.{kind}" for kind in ("png", "svg")]
    for path in plots:
        experiment.plot(rows, path)
    return [table, *plots]


def table(experiment: Experiment, rows: Sequence[Row]) -> list[list[str]]:
    """Headings, then the means over all draws with half their 95 % confidence intervals, as text."""
    names = [*experiment.keys, *experiment.figures]
    means = averaged(rows, experiment.keys, experiment.figures)
    return [names, *([_with_interval(experiment, rows, row, name) for name in names] for row in means)]


def _with_interval(experiment: Experiment, rows: Sequence[Row], means: Row, name: str) -> str:
    """A mean, and half its 95 % confidence interval where there are several draws that differ."""
    if name in experiment.keys or not isinstance(means[name], int | float):
        return shown(means[name])
    whole = [
        row[name]
        for row in rows
        if all(row[key] == means[key] for key in experiment.keys)
        and all(row[figure] is not None for figure in experiment.figures)
    ]
    half = half_width(whole)
    return f"{shown(means[name])} ± {_two_digits(half)}" if half else shown(means[name])


def _two_digits(value: float) -> str:
    """A number with two digits that count.

    >>> _two_digits(861.3), _two_digits(0.0417)
    ('860', '0.042')
    """
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def shown(value: object) -> str:
    """A value as it stands in a table.

    >>> shown(3409.61), shown(0.069612), shown(None)
    ('3,410', '0.06961', 'not run')
    """
    if value is None:
        return "not run"
    if isinstance(value, int) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
