"""Plans for streams at several sites: everything to one place, or just as the user says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from watersmeet.errors import InputError, did_you_mean
from watersmeet.plan.nodes import HeadPlan, Hop, KeyClass, Linear, Method, Plan
from watersmeet.plan.shape import QueryShape, above, shape_of
from watersmeet.query.model import JoinQuery


def central(query: JoinQuery, columns: Mapping[str, Sequence[str]], homes: Mapping[str, str], site: str) -> Plan:
    """Ship every stream to the query's site and join there: what everyone does today, and the baseline of the rest."""
    shape = shape_of(query, columns)
    return _plan(query, shape, homes, site, central_heads(query.aliases, shape.classes, site))


def central_heads(aliases: Sequence[str], classes: Sequence[KeyClass], site: str) -> tuple[HeadPlan, ...]:
    """The sequences of all heads where every stream is shipped to one site."""
    return tuple(
        HeadPlan(head, tuple(Hop(alias, Method.SP_S, at=site) for alias in connected(aliases, head, classes)))
        for head in aliases
    )


def explicit(
    query: JoinQuery,
    columns: Mapping[str, Sequence[str]],
    homes: Mapping[str, str],
    site: str,
    asked: Mapping[str, Sequence[Hop]],
) -> Plan:
    """Order, place and method of every one-way join as given; a head that is not mentioned goes as in `central`."""
    shape = shape_of(query, columns)
    for head in asked:
        if head not in query.aliases:
            raise InputError(f"plan: unknown head {head!r}; {did_you_mean(head, query.aliases)}")
    heads = []
    for default in central_heads(query.aliases, shape.classes, site):
        hops = asked.get(default.head)
        if hops is None:
            heads.append(default)
            continue
        _check_hops(query, default.head, hops)
        placed_hops = (placed(hop, homes[query.source(hop.alias).stream]) for hop in hops)
        heads.append(HeadPlan(default.head, tuple(placed_hops)))
    return _plan(query, shape, homes, site, tuple(heads))


def placed(hop: Hop, home: str) -> Hop:
    """SP-D joins at the alias's home; asked for at another site, both sides are shipped there, which is SP-S."""
    if hop.method is not Method.SP_D or hop.at is None:
        return hop
    return replace(hop, at=None) if hop.at == home else replace(hop, method=Method.SP_S)


def _check_hops(query: JoinQuery, head: str, hops: Sequence[Hop]) -> None:
    reached = {head}
    for hop in hops:
        if hop.alias not in query.aliases:
            raise InputError(f"plan of head {head!r}: unknown {hop.alias!r}; {did_you_mean(hop.alias, query.aliases)}")
        if hop.alias in reached:
            raise InputError(f"plan of head {head!r}: {hop.alias!r} is joined twice; name every other alias once")
        reached.add(hop.alias)
    missing = [alias for alias in query.aliases if alias not in reached]
    if missing:
        raise InputError(f"plan of head {head!r} never joins {', '.join(missing)}; name every other alias once")


def _plan(
    query: JoinQuery, shape: QueryShape, homes: Mapping[str, str], site: str, heads: tuple[HeadPlan, ...]
) -> Plan:
    places = tuple(homes[source.stream] for source in query.sources)
    return above(query, shape.join(places, (Linear(heads),), site))


def connected(aliases: Sequence[str], head: str, classes: Sequence[KeyClass]) -> list[str]:
    """The other aliases, each as soon as an equality ties it to those before it."""
    bound, order = {head}, []
    while len(bound) < len(aliases):
        rest = [alias for alias in aliases if alias not in bound]
        tied = [alias for alias in rest if any(c.member(alias) and any(c.member(b) for b in bound) for c in classes)]
        order.append((tied or rest)[0])
        bound.add(order[-1])
    return order
