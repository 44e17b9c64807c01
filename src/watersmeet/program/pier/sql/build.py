"""Small helpers that write operators and op-graphs as values."""

from collections.abc import Mapping, Sequence

from watersmeet.program.pier.graph import (
    Array,
    Expression,
    NamedValues,
    Operator,
    OpGraph,
    Predicate,
    Setting,
    Settings,
    Value,
)

Given = str | Expression | Sequence[Value] | Mapping[str, Value] | None


def operator(
    name: str,
    kind: str,
    implementation: str | None = None,
    sources: Sequence[str] = (),
    predicates: tuple[Predicate, ...] = (),
    **settings: Given,
) -> Operator:
    """An operator; a list becomes an array, a mapping a table, and None is left out."""
    entries: list[tuple[str, Setting]] = [("type", kind)]
    if implementation is not None:
        entries.append(("implementation", implementation))
    if sources:
        entries.append(("sources", _array(sources)))
    for key, value in settings.items():
        match value:
            case None:
                pass
            case str():
                entries.append((key, value))
            case Mapping():
                entries.append((key, NamedValues(tuple(value.items()))))
            case Sequence():
                if value:
                    entries.append((key, _array(value)))
            case _:
                entries.append((key, value))
    return Operator(name, Settings(tuple(entries)), predicates)


def graph(name: str, operators: Sequence[Operator], duration_s: float) -> OpGraph:
    """An op-graph that goes to all nodes."""
    return OpGraph(name, Settings((("duration", f"{duration_s:g}"),)), tuple(operators))


def _array(values: Sequence[Value]) -> Array:
    return Array(tuple(enumerate(values)))
