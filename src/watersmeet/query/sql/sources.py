"""FROM: the streams with their windows and aliases, and what joins them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.errors import InputError, SqlError, UnknownColumn, UnknownStream, did_you_mean
from watersmeet.query.model import Column, Equality, Expression, StreamRef
from watersmeet.query.sql.grammar import Statement
from watersmeet.query.sql.scope import Scope
from watersmeet.query.sql.tokens import SqlText, Token, Tokens
from watersmeet.query.windows import (
    MOST_ROWS,
    MOST_STREAMS,
    Range,
    Rows,
    Tumble,
    Unbounded,
    Window,
    parse_duration,
)

_LONGEST_ALIAS = 64
_ALIAS = re.compile(r"\w[\w $-]*")  # names of columns, flows and files are made of them


def joins_of(statement: Statement) -> Iterator[exp.Join]:
    """The streams after the first; kinds of joins that are not supported are refused."""
    (first,) = (statement.tree.args["from_"].this,)
    for join in (*(first.args.get("joins") or ()), *(statement.tree.args.get("joins") or ())):
        _check_kind(statement.text, join)
        yield join


def _check_kind(text: SqlText, join: exp.Join) -> None:
    first = join.meta["begin"]
    match (join.args.get("kind") or "").split():
        case ["NATURAL", *_]:
            raise text.error(first, "NATURAL JOIN is not supported; write JOIN ... ON with an equality")
        case words if kind_of(join) == "":
            written = " ".join((*words, "JOIN"))
            known = "[INNER], CROSS, LEFT, RIGHT, FULL [OUTER], SEMI and ANTI"
            raise text.error(first, f"{written} is not supported; joins are {known}")
    if join.args.get("using") and kind_of(join) in ("RIGHT", "FULL", "SEMI", "ANTI"):
        message = f"USING with a {kind_of(join)} JOIN is not supported, since it would hide columns; write ON"
        raise text.error(first, message)


def kind_of(join: exp.Join) -> str:
    """INNER, LEFT, RIGHT, FULL, SEMI or ANTI; nothing if it is none of these."""
    match (join.args.get("kind") or "").split():
        case [] | ["INNER"] | ["CROSS"]:
            return "INNER"
        case ["LEFT" | "RIGHT" | "FULL" as side] | ["LEFT" | "RIGHT" | "FULL" as side, "OUTER"]:
            return str(side)
        case ["SEMI" | "ANTI" as half] | ["LEFT", "SEMI" | "ANTI" as half]:
            return str(half)
        case _:
            return ""


def read_sources(
    statement: Statement,
    columns: Mapping[str, Sequence[str]],
    known_tables: Mapping[str, Window],
    subquery_of: str = "",
) -> tuple[StreamRef, ...]:
    """The streams and tables of FROM under their declared names, with an alias, and streams with a window.

    A stream that is alone or beside tables only needs none: nothing is joined with its earlier rows. In the subquery
    of a clause it needs one, and tables may be alone.
    """
    text = statement.text
    tables = [statement.tree.args["from_"].this, *(join.this for join in joins_of(statement))]
    windows = [_read_window(text, table.meta["window"]) if table.meta["window"] else None for table in tables]
    declared = {stream.casefold(): stream for stream in columns}
    streams = [table for table in tables if declared.get(table.name.casefold(), table.name) not in known_tables]
    seen: set[str] = set()
    sources = []
    for table, window in zip(tables, windows, strict=True):
        token, written, alias = table.meta["name"], table.name, table.alias
        stream = written if written in columns else declared.get(written.casefold())
        if stream is None:
            raise text.error(token, f"unknown stream {written!r}; {did_you_mean(written, columns)}", UnknownStream)
        if alias.casefold() in seen:
            cure = f"give one another name with AS, as in {written} [...] AS {alias}_2"
            raise text.error(token, f"two streams in FROM have the alias {alias!r}; {cure}")
        if not _ALIAS.fullmatch(alias):
            raise text.error(token, f"{alias!r} cannot be an alias; add AS with a plain name")
        if len(alias) > _LONGEST_ALIAS:
            message = f"the alias has {len(alias)} characters; add AS with a name of at most {_LONGEST_ALIAS}"
            raise text.error(token, message)
        if stream in known_tables:
            if window is not None:
                shown = text.sql[table.meta["window"][0].start : table.meta["window"][-1].end + 1]
                cure = f"write {written} {alias}" if alias != written else f"write {written}"
                raise text.error(token, f"{written!r} is a table, which has no window; leave out {shown}: {cure}")
            window = known_tables[stream]
        if window is None and len(streams) == 1 and not subquery_of:
            window = Unbounded()
        if window is None:
            where = f" in the subquery of {subquery_of}" if subquery_of else ""
            cure = f"add one, e.g. {alias} [RANGE 1 MINUTE] or {alias} [UNBOUNDED]"
            raise text.error(token, f"stream {alias!r}{where} has no window; {cure}")
        seen.add(alias.casefold())
        sources.append(StreamRef(alias, stream, window))
    if not streams and not subquery_of:
        first = tables[0].meta["name"]
        cure = "add a stream to FROM, or ask Spark itself (spark.sql) about tables alone"
        raise text.error(first, f"FROM has no stream, so nothing would ever be answered; {cure}")
    if len(sources) > MOST_STREAMS:
        raise SqlError(f"FROM has {len(sources)} streams; {MOST_STREAMS} is the limit of one query")
    return tuple(sources)


def with_using(
    statement: Statement, scope: Scope, sources: Sequence[StreamRef]
) -> tuple[Scope, dict[int, list[Equality]]]:
    """The equalities that USING stands for, by join; the columns that it names count as one from there on."""
    equalities: dict[int, list[Equality]] = {}
    for number, join in enumerate(joins_of(statement), start=1):
        left = [source.alias for source in sources[:number]]
        for name in join.args.get("using") or ():
            column = _column_of(scope, sources[number].alias, name)
            before = replace(scope, aliases={alias.casefold(): scope.aliases[alias.casefold()] for alias in left})
            other, _ = before.resolve([name])
            same = scope.united.get(name.name.casefold(), (other,))
            scope = replace(scope, united={**scope.united, name.name.casefold(): (*same, column)})
            same_values = Equality(Expression(other.sql, (other,)), Expression(column.sql, (column,)))
            equalities.setdefault(number, []).append(same_values)
    return scope, equalities


def _column_of(scope: Scope, alias: str, name: exp.Identifier) -> Column:
    columns = scope.aliases[alias.casefold()][1]
    if name.name.casefold() not in columns:
        near = did_you_mean(name.name, columns.values())
        raise scope.text.error(int(name.meta["start"]), f"{alias!r} has no column {name.name!r}; {near}", UnknownColumn)
    return Column(alias, columns[name.name.casefold()])


def _read_window(text: SqlText, tokens: Tokens) -> Window:
    """`[RANGE duration]`, `[TUMBLE duration]`, `[ROWS count]` or `[UNBOUNDED]`."""
    opening, *inside, closing = tokens
    kind = inside[0].text.casefold() if inside else ""
    amount = text.sql[inside[0].end + 1 : closing.start].strip() if inside else ""
    match kind:
        case "range" | "tumble":
            window_us = read_duration(text, inside[0], amount)
            return Range(window_us) if kind == "range" else Tumble(window_us)
        case "rows":
            if not re.fullmatch(r"[+-]?\s*\d+", amount):
                raise text.error(inside[0], f"ROWS takes a whole number of rows, not {amount!r}; write [ROWS 100]")
            if (count := int(amount.replace(" ", ""))) < 1:
                raise text.error(inside[0], f"ROWS must be positive, not {count}")
            if count > MOST_ROWS:
                message = f"ROWS {count} is more than {MOST_ROWS:,} rows; use UNBOUNDED or fewer"
                raise text.error(inside[0], message)
            return Rows(count)
        case "unbounded" if not amount:
            return Unbounded()
        case _:
            written = text.sql[opening.start : closing.end + 1]
            known = "[RANGE 1 MINUTE], [ROWS 100], [TUMBLE 5 SECONDS] or [UNBOUNDED]"
            raise text.error(opening, f"{written!r} is not a window; write {known}")


def read_duration(text: SqlText, kind: Token, amount: str) -> int:
    """Microseconds of a duration with or without INTERVAL and quotes."""
    plain = re.sub(r"^interval\b", "", re.sub(r"['\"]", " ", amount).strip(), flags=re.IGNORECASE).strip()
    name = kind.text.upper()
    try:
        window_us = parse_duration(plain)
    except InputError as error:
        raise text.error(kind, f"{name} window: {error}") from None
    if window_us <= 0:
        raise text.error(kind, f"{name} must be positive, not {plain!r}")
    return window_us
