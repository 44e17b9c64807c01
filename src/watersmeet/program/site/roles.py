"""What inputs of operators stand for: rows of heads or of windows, of which alias, and those looked up by key."""

from watersmeet.program.operators import (
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
    rows_of,
)


def role(operator: Operator, flow: Flow) -> Form:
    """What the rows of an input stand for in an operator: the rows of a head are points, those of a window are not."""
    if isinstance(operator, Join):
        return Form.POINT if flow == operator.left else Form.ROW
    if isinstance(operator, Gather):
        return flow.form
    if isinstance(operator, Semijoin) and operator.head and flow == rows_of(operator.head):
        return Form.POINT
    if isinstance(operator, ProjectKeys) and not operator.alias:
        return Form.POINT
    return flow.form


def reads_window(operator: Operator, flow: Flow) -> bool:
    """Whether an operator looks up rows of a flow that came before; new rows of a head look up others."""
    is_carrier = isinstance(operator, Probe) and flow == operator.left
    return not is_carrier and role(operator, flow) is not Form.POINT


def stored_inputs(operator: Operator) -> tuple[Flow, ...]:
    """The flows whose rows an operator looks for by its key; an announcer also remembers what it announced."""
    if isinstance(operator, Announce):
        return (operator.rows, operator.out)
    return tuple(dict.fromkeys(operator.inputs))


def axis_alias(operator: Operator, flow: Flow) -> str:
    """The alias whose window an input of an operator is about."""
    match operator:
        case Pair():
            return operator.left_alias if flow == operator.left else operator.right_alias
        case Gather():
            return operator.alias_of(flow)
        case Semijoin() if operator.has_rows and flow == operator.witness:
            return flow.name
        case Probe():
            return next((lookup.alias for lookup in operator.lookups if lookup.rows == flow), operator.head)
        case _:
            return operator.alias
