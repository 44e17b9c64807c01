"""What a plan ships, in plain words: which rows or values each flow between sites has, and what they are chosen by."""

from collections.abc import Iterable, Sequence

from watersmeet.plan.nodes import JoinPlan, Key
from watersmeet.program.compile import compile_sites
from watersmeet.program.operators import (
    ROWLESS,
    Announce,
    Flow,
    Form,
    Gather,
    Join,
    Operator,
    Pair,
    Probe,
    ProjectKeys,
    Semijoin,
)


def flow_words(join: JoinPlan) -> dict[str, str]:
    """By name, what travels in each flow between sites."""
    programs = compile_sites(join)
    words = _Words(join, [one for program in programs.values() for one in program.operators])
    ships = [ship for program in programs.values() for ship in program.ships]
    return {ship.arrives_as.name: words.of(ship.arrives_as) for ship in ships if ship.flow.form not in ROWLESS}


def shipping_lines(join: JoinPlan) -> list[str]:
    """What each site ships to which other one, a line for each flow: where nothing is known of how much it is."""
    words = flow_words(join)
    return [
        f"{site} -> {ship.to}  {words[ship.arrives_as.name]}  ({ship.arrives_as.purpose.value})"
        for site, program in compile_sites(join).items()
        for ship in program.ships
        if ship.flow.form not in ROWLESS
    ]


class _Words:
    def __init__(self, join: JoinPlan, operators: Sequence[Operator]) -> None:
        self._join = join
        self._made: dict[str, Operator] = {one.out.name: one for one in operators}
        for gather in operators:
            if isinstance(gather, Gather):
                self._made |= {one.out.name: one for one in gather.members}
                self._made[gather.out.name] = gather

    def of(self, flow: Flow) -> str:
        """What is in a flow as it travels."""
        name = _plain(flow)
        if flow.form is Form.CLOCK:
            return f"when rows of {name.removeprefix('clock(').removesuffix(')')} came, to count them"
        made = self._made.get(name)
        text = self._whole(name) if made is None else self._text(made)
        return f"Bloom filters of {text}" if flow.bloom else text

    def _whole(self, alias: str) -> str:
        has_filters = bool(self._join.scan(alias).filters)
        return f"rows of {alias} that pass its filters" if has_filters else f"all rows of {alias}"

    def _text(self, made: Operator) -> str:
        match made:
            case Announce():
                values = self._values(made.key, self._aliases(made.rows))
                return f"{values} of {self._rows(made.rows)}, each once while it is in the window"
            case ProjectKeys():
                return f"{self._values(made.key, self._aliases(made.rows))} of new {self._rows(made.rows)}"
            case Semijoin() if made.out.form is Form.SPAN:
                aliases = {**dict.fromkeys(self._aliases(made.subject)), **dict.fromkeys(self._aliases(made.witness))}
                return f"{self._values(made.key, tuple(aliases))} that {_listed(aliases)} have in common"
            case _:
                return self._rows(made.out)

    def _rows(self, flow: Flow) -> str:
        made = self._made.get(_plain(flow))
        match made:
            case None:
                return f"rows of {flow.name}"
            case Gather():
                by = list(dict.fromkeys(self._chosen(one) for one in made.members))
                return f"rows of {_listed(made.aliases)} {' or '.join(by)}"
            case Semijoin():
                rows, chosen = self._rows(made.subject), self._chosen(made)
                if chosen in rows:
                    return rows
                return f"{rows} and {chosen}" if " whose " in rows else f"{rows} {chosen}"
            case Join() | Pair() | Probe() if made.out.form is Form.RESULT:
                return "answers"
            case _:
                return f"combinations of {_listed(self._aliases(flow))}"

    def _chosen(self, made: Semijoin) -> str:
        """What the rows of a semijoin must have."""
        own = self._aliases(made.subject)
        others = [alias for alias in self._aliases(made.witness) if alias not in own] or [made.alias]
        return f"whose {self._key(made.key, own)} {_listed(others)} {'have' if len(others) > 1 else 'has'} too"

    def _aliases(self, flow: Flow) -> tuple[str, ...]:
        """The streams whose rows or keys a flow has."""
        made = self._made.get(_plain(flow))
        match made:
            case None:
                return (flow.name,)
            case Join():
                return (*made.bound, made.alias)
            case Pair():
                return made.aliases
            case Probe():
                return (*made.bound, *(one.alias for one in made.lookups))
            case Gather():
                return made.aliases
            case Announce() | ProjectKeys():
                return self._aliases(made.rows)
            case Semijoin():
                others = self._aliases(made.witness) if made.out.form is Form.SPAN else ()
                return tuple(dict.fromkeys((*self._aliases(made.subject), *others)))

    def _values(self, key: Key, aliases: Sequence[str]) -> str:
        return f"values of {self._key(key, aliases)}"

    def _key(self, key: Key, aliases: Sequence[str]) -> str:
        """A key as its column is called in the first of some streams that has it."""
        names = []
        for number in key:
            members = [(alias, self._join.classes[number].member(alias)) for alias in aliases]
            alias, member = next(((alias, one) for alias, one in members if one is not None), ("", None))
            shown = f"K{number + 1}" if member is None else member.sql.replace("`", "").removeprefix(f"{alias}.")
            names.append(shown)
        return " and ".join(names) or "presence"


def _listed(names: Iterable[str]) -> str:
    *rest, last = names
    return f"{', '.join(rest)} and {last}" if rest else last


def _plain(flow: Flow) -> str:
    return flow.name.removeprefix("bloom ") if flow.bloom else flow.name
