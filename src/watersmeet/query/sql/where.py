"""WHERE and ON, split into conjuncts: equalities between two streams, and other predicates."""

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType as T

from watersmeet.errors import SqlError
from watersmeet.query.model import Equality, Expression, JoinQuery
from watersmeet.query.sql.expressions import column_references, make_expression
from watersmeet.query.sql.functions import refuse_functions
from watersmeet.query.sql.grammar import Statement
from watersmeet.query.sql.scope import Scope
from watersmeet.query.sql.tokens import LOW_PRECEDENCE, Tokens, outside_brackets, unwrapped


def conjuncts_of(condition: exp.Expr) -> list[exp.Expr]:
    """The parts of a condition between its outermost ANDs."""
    found: list[exp.Expr] = []
    waiting = [condition]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.And):
            waiting += [node.expression, node.this]
        elif isinstance(node, exp.Paren) and "tokens" in node.this.meta:
            waiting.append(node.this)
        else:
            found.append(node)
    return found


def read_conjunct(statement: Statement, scope: Scope, node: exp.Expr) -> Equality | Expression:
    """A conjunct as an equality if it is one between two streams, else as it stands."""
    tokens, nodes = statement.tokens_of(node), [node]
    if isinstance(node, exp.Alias | exp.Aliases):
        raise scope.text.unexpected(tokens[-1])
    refuse_functions(scope.text, tokens, nodes, "WHERE or ON")
    references = column_references(scope, tokens, nodes)
    operators = [(i, token) for i, token in outside_brackets(tokens) if token.kind in LOW_PRECEDENCE]
    if [token.kind for _, token in operators] == [T.EQ]:
        equals = operators[0][0]
        sides = (tokens[:equals], tokens[equals + 1 :])
        left, right = (make_expression(_without_parentheses(side), references) for side in sides)
        if len(left.aliases) == len(right.aliases) == 1 and left.aliases != right.aliases:
            return Equality(left, right)
    expression = make_expression(tokens, references)
    # In parentheses, so that predicates can be put together with AND as they are.
    if any(token.kind is T.OR for _, token in operators):
        return Expression(f"({expression.sql})", expression.columns)
    return expression


def _without_parentheses(side: Tokens) -> Tokens:
    """A side of an equality without needless parentheses."""
    inner = unwrapped(side)
    return side if any(token.kind in LOW_PRECEDENCE for _, token in outside_brackets(inner)) else inner


def check_connected(query: JoinQuery) -> None:
    """Refuse a cross product that `allow_cross` does not ask for."""
    group = {alias: {alias} for alias in query.aliases}
    for equality in query.equalities:
        merged = group[equality.left.aliases[0]] | group[equality.right.aliases[0]]
        group.update(dict.fromkeys(merged, merged))
    groups = list(dict.fromkeys(", ".join(a for a in query.aliases if a in group[alias]) for alias in query.aliases))
    if len(groups) > 1:
        shown = " and ".join(f"({names})" for names in groups)
        cure = "add an equality between them, or set `allow_cross: true` to ask for every combination"
        raise SqlError(f"no equality joins the streams {shown}; {cure}")
