"""Functions that are refused: what is not evaluated row by row, and in predicates what is not deterministic."""

from collections.abc import Iterable

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType as T

from watersmeet.query.sql.tokens import SqlText, Tokens, names

_GENERATORS = names(
    "explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple variant_explode "
    "variant_explode_outer collations sql_keywords"
)
_NON_DETERMINISTIC = names(
    "rand randn random randstr uniform uuid shuffle now current_timestamp current_date curdate current_time "
    "localtimestamp localtime current_user session_user monotonically_increasing_id spark_partition_id "
    "input_file_name input_file_block_start input_file_block_length"
)
_AGGREGATES = names(
    "any some every mean std collect_list collect_set listagg string_agg percentile percentile_approx "
    "approx_percentile bit_and bit_or bit_xor count_min_sketch histogram_numeric hll_sketch_agg hll_union_agg "
    "try_sum try_avg product schema_of_json_agg schema_of_variant_agg row_number"
) | {name.lower() for name, function in exp.FUNCTION_BY_NAME.items() if issubclass(function, exp.AggFunc)}


def refuse_functions(text: SqlText, tokens: Tokens, nodes: Iterable[exp.Expr], *, is_predicate: bool) -> None:
    """Refuse what cannot be evaluated row by row; by name, since sqlglot has no class for some of it."""
    if any(node.find(exp.Window, exp.WithinGroup) for node in nodes):
        raise text.error(tokens[0], f"window functions are not supported, {text.excerpt_of(tokens)}")
    for i, token in enumerate(tokens):
        name = token.name.casefold()
        after_dot = i > 0 and tokens[i - 1].kind is T.DOT
        is_call = i + 1 < len(tokens) and tokens[i + 1].kind is T.L_PAREN
        if after_dot or not (is_call or token.kind.name.startswith(("CURRENT_", "LOCALTIME"))):
            continue
        quantifies = name in ("any", "some") and i > 0 and tokens[i - 1].kind in (T.LIKE, T.ILIKE)
        is_clock = name == "unix_timestamp" and tokens[i + 2].kind is T.R_PAREN
        if name in _GENERATORS:
            raise text.error(token, f"the generator {name} is not supported; use it before the stream is joined")
        if name in ("window", "session_window"):
            raise text.error(token, f"{name}() is not supported; write the window after the stream, in brackets")
        if name in _AGGREGATES and not quantifies:
            raise text.error(token, f"the aggregate {name} is not supported yet; aggregate the answers downstream")
        if is_predicate and (name in _NON_DETERMINISTIC or is_clock):
            raise text.error(token, f"{name} is not deterministic and so cannot be in WHERE or ON")
    for node in nodes:
        if (star := node.find(exp.Star)) and star is not node and not isinstance(star.parent, exp.Column):
            raise text.error(
                tokens[0], f"* inside an expression is not supported; name the columns, {text.excerpt_of(tokens)}"
            )
