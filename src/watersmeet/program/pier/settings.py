"""Reads the settings of an operator or op-graph and refuses what it does not know; errors say where it stands."""

from collections.abc import Sequence
from re import fullmatch

from watersmeet.errors import UflError, did_you_mean
from watersmeet.program.pier.expressions import check_functions, condition_of
from watersmeet.program.pier.graph import Array, Call, Expression, NamedValues, Operator, Settings, Value
from watersmeet.program.pier.ufl.parse import as_expression

COMMON = ("type", "implementation", "sources", "errors", "tap")
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")
_LONGEST_S = 1e9


class SettingsReader:
    """The settings of one object; whoever has read all that it knows calls `done`."""

    def __init__(self, settings: Settings, where: str, ignored: Sequence[str] = ()) -> None:
        self.where = where
        self._settings, self._known = settings, [name.casefold() for name in ignored]

    @classmethod
    def of(cls, operator: Operator) -> "SettingsReader":
        """The settings of an operator, without those that all have."""
        return cls(operator.settings, f"line {operator.line}, operator {operator.name!r}", COMMON)

    def fail(self, message: str) -> UflError:
        """An error about this object."""
        return UflError(f"{self.where}: {message}")

    def text(self, key: str, default: str | None = None) -> str:
        """A plain text; without a default it must be there."""
        found = self._get(key)
        if found is None:
            if default is None:
                raise self.fail(f"it has no {key}; add {key} = ...")
            return default
        if not isinstance(found, str):
            raise self.fail(f"{key} must be one plain text")
        return found

    def optional(self, key: str) -> str | None:
        """A plain text, or None."""
        return self.text(key) if self._get(key) is not None else None

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """One of some words, in any case of their letters."""
        found = self.text(key, default).casefold()
        if found not in choices:
            raise self.fail(f"{key} is {found!r}; {did_you_mean(found, choices)}")
        return found

    def flag(self, key: str, default: bool) -> bool:
        """Yes or no."""
        return self.choice(key, (*TRUE, *FALSE), "true" if default else "false") in TRUE

    def whole(self, key: str, default: int | None, least: int = 1) -> int | None:
        """A whole number."""
        found = self.optional(key)
        if found is None:
            return default
        if not found.isascii() or not found.isdigit() or len(found) > 15 or int(found) < least:
            raise self.fail(f"{key} must be a whole number of {least} or more, not {found!r}")
        return int(found)

    def integer(self, key: str) -> int | None:
        """A whole number of 64 bits, with a sign or without, or None."""
        found = self.optional(key)
        if found is None:
            return None
        if not fullmatch(r"-?[0-9]{1,19}", found) or not -(1 << 63) <= int(found) < 1 << 63:
            raise self.fail(f"{key} must be a whole number of 64 bits, not {found!r}")
        return int(found)

    def bounds(self) -> tuple[int, int] | None:
        """The range from `low` to `high`, both included; None if neither is given."""
        low, high = self.integer("low"), self.integer("high")
        if low is None and high is None:
            return None
        low, high = -(1 << 63) if low is None else low, (1 << 63) - 1 if high is None else high
        if low > high:
            raise self.fail(f"low is {low} and high {high}; a range begins with its lowest key")
        return low, high

    def number(self, key: str) -> float | None:
        """A positive number, or None."""
        found = self.optional(key)
        if found is None:
            return None
        try:
            value = float(found)
        except ValueError:
            value = -1.0
        if not 0 < value <= _LONGEST_S:
            raise self.fail(f"{key} must be a number above 0 and at most {_LONGEST_S:,.0f}, not {found!r}")
        return value

    def duration_us(self, key: str, default_us: int | None) -> int | None:
        """A duration that is given in seconds."""
        seconds = self.number(key)
        return default_us if seconds is None else max(1, round(seconds * 1e6))

    def texts(self, key: str) -> tuple[str, ...]:
        """The plain texts of an array; a single one may stand without brackets."""
        found = []
        for value in self._values(key):
            if not isinstance(value, str):
                raise self.fail(f"{key} must be an array of plain texts")
            found.append(value)
        return tuple(found)

    def expressions(self, key: str) -> tuple[Expression, ...]:
        """The expressions of an array."""
        return tuple(self._checked(value) for value in self._values(key))

    def expression(self, key: str) -> Expression | None:
        """One expression, or None."""
        found = self._get(key)
        if found is None:
            return None
        if isinstance(found, Array | NamedValues):
            raise self.fail(f"{key} must be one expression")
        return self._checked(found)

    def named_expressions(self, key: str) -> tuple[tuple[str, Expression], ...]:
        """The expressions of a table, by name."""
        return tuple((name, self._checked(value)) for name, value in self._entries(key))

    def named_calls(self, key: str) -> tuple[tuple[str, Call], ...]:
        """The calls of a table, by name; which functions there are is not asked here."""
        found = []
        for name, value in self._entries(key):
            if not isinstance(value, Call):
                raise self.fail(f"{key}[{name}] must be a function, such as count()")
            found.append((name, value))
        return tuple(found)

    def named_texts(self, key: str) -> tuple[tuple[str, str], ...]:
        """The plain texts of a table, by name."""
        found = []
        for name, value in self._entries(key):
            if not isinstance(value, str):
                raise self.fail(f"{key}[{name}] must be a plain text")
            found.append((name, value))
        return tuple(found)

    def condition(self, operator: Operator) -> Expression | None:
        """The predicates of an operator as one condition: all of them."""
        found = tuple(condition_of(predicate, self.where) for predicate in operator.predicates)
        if len(found) <= 1:
            return found[0] if found else None
        return Call("and", found)

    def done(self) -> None:
        """Refuse settings that nobody has asked for."""
        for name, _ in self._settings.entries:
            if name.casefold() not in self._known:
                known = sorted(set(self._known) - set(COMMON)) or ["none of its own"]
                raise self.fail(f"unknown setting {name!r}; {did_you_mean(name, known)}")

    def _get(self, key: str) -> Value | Array | NamedValues | None:
        self._known.append(key)
        return self._settings.get(key)

    def _values(self, key: str) -> tuple[Value, ...]:
        found = self._get(key)
        match found:
            case None:
                return ()
            case Array():
                return found.values
            case NamedValues():
                raise self.fail(f"{key} must be an array: {key}[] = ...")
            case _:
                return (found,)

    def _entries(self, key: str) -> tuple[tuple[str, Value], ...]:
        found = self._get(key)
        if found is None:
            return ()
        if not isinstance(found, NamedValues):
            raise self.fail(f"{key} must be a table: {key}[name] = ...")
        return found.entries

    def _checked(self, value: Value) -> Expression:
        expression = as_expression(value)
        check_functions(expression, self.where)
        return expression
