"""A plan as text or as plain data; the same on every run."""

from dataclasses import fields, is_dataclass
from typing import Any, assert_never

from watersmeet.plan import Distinct, Key, MultiJoin, Plan, Project, Restrict, Stage
from watersmeet.query.model import Expression


def explain_text(plan: Plan) -> str:
    """The plan as an indented tree."""
    return "\n".join(_lines(plan, 0))


def explain_data(plan: Plan) -> dict[str, Any]:
    """The plan as plain data for JSON; every node says what it is under `node`."""
    data: dict[str, Any] = _plain(plan)
    return data


def _lines(plan: Plan, depth: int) -> list[str]:
    pad = "  " * depth
    match plan:
        case Distinct(child):
            return [f"{pad}distinct", *_lines(child, depth + 1)]
        case Project(child, select):
            columns = ", ".join(f"{_shown(item.expression)} AS {item.name}" for item in select)
            return [f"{pad}project {columns}", *_lines(child, depth + 1)]
        case Restrict(child, predicates):
            return [
                f"{pad}keep where {' AND '.join(_shown(predicate) for predicate in predicates)}",
                *_lines(child, depth + 1),
            ]
        case MultiJoin():
            return _join_lines(plan, pad)
        case _:
            assert_never(plan)


def _join_lines(join: MultiJoin, pad: str) -> list[str]:
    order = "in event-time order, behind the watermark" if join.ordered else "as rows arrive"
    rounds = f"{join.rounds} round{'s' if join.rounds > 1 else ''} a batch"
    lines = [f"{pad}join {len(join.scans)} windows {order}, {rounds}"]
    for key_class in join.classes:
        kind = "compared as 64-bit values" if key_class.exact else "hashed to 64 bits, compared again on a hit"
        members = " = ".join(_shown(member) for member in key_class.members)
        lines.append(f"{pad}  key {_letter(key_class.number)}: {members}; {kind}")
    for sequence in join.sequences:
        stages = " => ".join(_stage(stage) for stage in sequence.stages)
        lines.append(f"{pad}  new rows of {sequence.head}: {stages}")
    for scan in join.scans:
        kept = ", ".join(_shown(item.expression) for item in scan.kept) or "no columns"
        keys = ", ".join(_key(key) for key in scan.stored)
        lines.append(f"{pad}  window {scan.alias}: {scan.stream} [{scan.window}], keeps {kept}, indexed by {keys}")
        lines += [f"{pad}    where {_shown(expression)}" for expression in scan.filters]
    return lines


def _stage(stage: Stage) -> str:
    probes = [
        probe.alias + _also([_letter(number) for number in probe.checks if number not in stage.key])
        for probe in stage.probes
    ]
    return f"by {_key(stage.key)} probe {', '.join(probes)}"


def _also(classes: list[str]) -> str:
    return f" (and compare {', '.join(classes)})" if classes else ""


def _key(key: Key) -> str:
    return "+".join(_letter(number) for number in key) or "nothing"


def _letter(number: int) -> str:
    return f"K{number + 1}"


def _shown(expression: Expression) -> str:
    return expression.sql.replace("`", "")


def _plain(value: Any) -> Any:
    if isinstance(value, Expression):
        return _shown(value)
    if is_dataclass(value) and not isinstance(value, type):
        data = {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
        return {"node": type(value).__name__, **data}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
