"""Which expressions a query makes equal: its equalities closed under transitivity."""

from watersmeet.query.model import Expression, JoinQuery


def equal_sides(query: JoinQuery) -> list[list[Expression]]:
    """The sides of equalities in groups of equal value, groups and members in a fixed order."""
    groups: list[set[Expression]] = []
    for equality in query.equalities:
        joined = {equality.left, equality.right}
        joined = joined.union(*(group for group in groups if group & joined))
        groups = [group for group in groups if not group & joined] + [joined]
    return sorted((sorted(group, key=lambda side: side.sql) for group in groups), key=lambda group: group[0].sql)
