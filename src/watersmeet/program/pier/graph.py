"""Op-graphs as frozen values (PIER, section 3.3.2 and appendix A): what UFL text says, and nothing of how it is run.

A query is one op-graph or more, an op-graph is a set of operators, and data flow from the operators named in `sources`
to the one that names them. Settings are kept as they are written; each operator says which of them it knows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

DEEPEST = 64  # levels of functions within functions, and of predicates within predicates
QUERY_TIME, QUERY_ID = "\ufdd0", "\ufdd1"  # noncharacters stand for \qt and \qi until a proxy knows them


@dataclass(frozen=True, slots=True)
class ConstantArgument:
    """A value as text, and its type."""

    text: str
    type: str

    @property
    def depth(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class TupleField:
    """A column of the tuple at hand."""

    name: str

    @property
    def depth(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Call:
    """A function of expressions."""

    function: str
    arguments: tuple["Expression", ...] = ()
    depth: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", 1 + max((argument.depth for argument in self.arguments), default=0))


Expression: TypeAlias = ConstantArgument | TupleField | Call


def fields_of(expression: Expression) -> frozenset[str]:
    """The columns that an expression reads.

    >>> sorted(fields_of(Call("add", (TupleField("a"), TupleField("b")))))
    ['a', 'b']
    """
    match expression:
        case TupleField(name):
            return frozenset((name,))
        case Call(_, arguments):
            return frozenset().union(*map(fields_of, arguments))
        case ConstantArgument():
            return frozenset()


Value: TypeAlias = str | Expression


@dataclass(frozen=True, slots=True)
class Array:
    """A setting with numbered values; numbers may be left out."""

    items: tuple[tuple[int, Value], ...]

    @property
    def values(self) -> tuple[Value, ...]:
        """The values in the order of their numbers."""
        return tuple(value for _, value in sorted(self.items, key=lambda item: item[0]))


@dataclass(frozen=True, slots=True)
class NamedValues:
    """A setting with named values."""

    entries: tuple[tuple[str, Value], ...]


Setting: TypeAlias = Value | Array | NamedValues


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an object, in order."""

    entries: tuple[tuple[str, Setting], ...] = ()

    def get(self, key: str) -> Setting | None:
        """The setting of a name, in any case of its letters; None if it is not there."""
        return next((value for name, value in self.entries if name.casefold() == key), None)


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition: atomic, or all or any of others."""

    name: str
    settings: Settings = Settings()
    predicates: tuple["Predicate", ...] = ()
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Operator:
    """A box of an op-graph."""

    name: str
    settings: Settings = Settings()
    predicates: tuple[Predicate, ...] = ()
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OpGraph:
    """Operators that run together at a node, and the unit of dissemination."""

    name: str
    settings: Settings = Settings()
    operators: tuple[Operator, ...] = ()
    line: int = field(default=0, compare=False)

    def operator(self, name: str) -> Operator | None:
        """The operator of a name; None if there is none."""
        return next((operator for operator in self.operators if operator.name == name), None)


@dataclass(frozen=True, slots=True)
class UflQuery:
    """All op-graphs of a query."""

    graphs: tuple[OpGraph, ...]


def expanded(query: UflQuery, query_id: str, time_us: int) -> UflQuery:
    r"""The query with its identifier and its time in the place of \qi and \qt."""

    def text(value: str) -> str:
        return value.replace(QUERY_ID, query_id).replace(QUERY_TIME, str(time_us))

    return UflQuery(tuple(_graph_with(graph, text) for graph in query.graphs))


def _graph_with(graph: OpGraph, text: Callable[[str], str]) -> OpGraph:
    operators = tuple(
        replace(
            operator,
            settings=_settings_with(operator.settings, text),
            predicates=tuple(_predicate_with(predicate, text) for predicate in operator.predicates),
        )
        for operator in graph.operators
    )
    return replace(graph, settings=_settings_with(graph.settings, text), operators=operators)


def _predicate_with(predicate: Predicate, text: Callable[[str], str]) -> Predicate:
    below = tuple(_predicate_with(each, text) for each in predicate.predicates)
    return replace(predicate, settings=_settings_with(predicate.settings, text), predicates=below)


def _settings_with(settings: Settings, text: Callable[[str], str]) -> Settings:
    def changed(setting: Setting) -> Setting:
        match setting:
            case Array(items):
                return Array(tuple((index, _value_with(value, text)) for index, value in items))
            case NamedValues(entries):
                return NamedValues(tuple((name, _value_with(value, text)) for name, value in entries))
            case _:
                return _value_with(setting, text)

    return Settings(tuple((name, changed(setting)) for name, setting in settings.entries))


def _value_with(value: Value, text: Callable[[str], str]) -> Value:
    return text(value) if isinstance(value, str) else _expression_with(value, text)


def _expression_with(value: Expression, text: Callable[[str], str]) -> Expression:
    match value:
        case ConstantArgument(written, kind):
            return ConstantArgument(text(written), kind)
        case TupleField(name):
            return TupleField(text(name))
        case Call(function, arguments):
            return Call(function, tuple(_expression_with(argument, text) for argument in arguments))
