"""A run as one piece of HTML for notebooks: the figures of the page, without scripts and in the notebook's colours."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from watersmeet.texts import size_text

_MOST_NOTES = 5
_MOST_LINKS = 12
_COLOURS = {"running": "#1a7f4b", "slow": "#b26a00", "silent": "#b3261e", "failed": "#b3261e"}
_CELL = "padding:2px 10px 2px 0;text-align:{}"


def run_html(now: dict[str, Any], notes: Sequence[dict[str, Any]], query: str | None = None) -> str:
    """A snapshot of a run with what happened last, or of one of its queries."""
    parts = [_title(now, query)]
    queries = [value for value in now["queries"] if query in (None, value["name"])]
    parts.append(_queries(queries))
    if query is None:
        parts += [_sites(now["sites"]), _links(now["links"])]
    else:
        parts += [_flows(query) for query in queries]
        notes = [note for note in notes if note["query"] in (None, query)]
    parts.append(_notes(notes[-_MOST_NOTES:]))
    return f'<div style="font-size:13px;line-height:1.5">{"".join(parts)}</div>'


def table_html(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str) -> str:
    """Rows as an HTML table; nothing in them is taken for HTML, and a column whose name starts with # has numbers.

    >>> table_html(["k"], [["<b>"]], "1 answer")
    '<table><caption>1 answer</caption><tr><th>k</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    styles = [f' style="{_CELL.format("right")}"' if name.startswith("#") else "" for name in columns]

    def line(tag: str, values: Sequence[Any]) -> str:
        cells = (f"<{tag}{style}>{escape(str(value))}</{tag}>" for style, value in zip(styles, values, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    head = line("th", [name.removeprefix("#") for name in columns])
    return f"<table><caption>{escape(caption)}</caption>{head}{''.join(line('td', row) for row in rows)}</table>"


def _title(now: dict[str, Any], query: str | None) -> str:
    totals = now["totals"]
    figures = [
        f"{totals['rows']:,.0f} rows in",
        f"{totals['answers']:,.0f} answers",
        f"{_bytes(totals['bytes'])} shipped",
    ]
    if totals["central"]:
        figures[-1] += f" ({totals['bytes'] / totals['central']:.0%} of central)"
    name = query or ", ".join(value["name"] for value in now["queries"])
    colour = _COLOURS.get(now["state"], "#6b7280")
    state = f'<span style="color:{colour};font-weight:600">{escape(now["state"])}</span>'
    message = f'<div style="color:{_COLOURS["failed"]}">{escape(now["message"])}</div>' if now["message"] else ""
    return f"<div><b>{escape(name)}</b> {state} &nbsp; {escape(', '.join(figures))}</div>{message}"


def _queries(queries: Sequence[dict[str, Any]]) -> str:
    columns = [
        "query",
        "planner",
        "#plan",
        "#rows in",
        "#answers",
        "#median",
        "#99 %",
        "#late",
        "#malformed",
        "#shipped",
    ]
    rows = [
        [
            *(
                query["name"],
                query["planner"] or "-",
                query["version"] or "-",
                f"{query['rows']:,.0f}",
                f"{query['answers']:,.0f}",
            ),
            *(_seconds(query["delay_median_s"]), _seconds(query["delay_p99_s"])),
            *(f"{query['late']:,.0f}", f"{query['malformed']:,.0f}", _bytes(query["shipped"])),
        ]
        for query in queries
    ]
    return table_html(columns, rows, "Queries")


def _sites(sites: Sequence[dict[str, Any]]) -> str:
    rows = []
    for site in sites:
        marks = [stream["watermark_us"] for stream in site["streams"] if stream["watermark_us"] is not None]
        low = _instant(min(marks) / 1e6) if marks else "-"
        state = f"{site['state']}, {site['why']}" if site["why"] and site["state"] != "ended" else site["state"]
        kept = "-" if site["state_rows"] is None else f"{site['state_rows']:,}"
        rows.append([site["name"], state, f"{site['rows_s']:,.0f}", kept, _bytes(site["state_bytes"]), low])
    return table_html(["site", "state", "#rows/s", "#rows kept", "#size", "low watermark (UTC)"], rows, "Sites")


def _links(links: Sequence[dict[str, Any]]) -> str:
    used = sorted((link for link in links if link["bytes"]), key=lambda link: -link["bytes"])[:_MOST_LINKS]
    rows = [
        [
            f"{link['from']} → {link['to']}",
            f"{_bytes(link['bytes_s'])}/s",
            _bytes(link["bytes"]),
            _bytes(link["backlog"]),
            _seconds(link["measured_latency_s"]),
        ]
        for link in used
    ]
    return table_html(["link", "#now", "#sent", "#backlog", "#latency"], rows, "Links") if rows else ""


def _flows(query: dict[str, Any]) -> str:
    rows = [
        [
            f"{flow['from']} → {flow['to']}",
            flow["purpose"],
            flow["flow"],
            _bytes(flow["bytes"]),
            _rate(flow["measured_s"]),
            _rate(flow["expected_s"]),
        ]
        for flow in query["flows"]
    ]
    columns = ["link", "purpose", "flow", "#shipped in all", "#measured, this plan", "#expected"]
    return table_html(columns, rows, "Flows") if rows else ""


def _notes(notes: Sequence[dict[str, Any]]) -> str:
    rows = [[_instant(note["at"]), note["title"], note["detail"]] for note in reversed(notes)]
    return table_html(["when (UTC)", "what", "why"], rows, "What happened") if rows else ""


def _bytes(size: float | None) -> str:
    return "-" if size is None else size_text(size)


def _rate(size: float | None) -> str:
    return "-" if size is None else f"{_bytes(size)}/s"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
