"""Functions that are refused: what is not evaluated row by row, what calls Java, and in predicates what is not
deterministic. Only names are known here; `spark/binding.py` asks Spark's analyser what they stand for."""

from collections.abc import Collection, Iterable

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType as T

from watersmeet.query.sql.tokens import SqlText, Tokens, names

_GENERATORS = names(
    "explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple variant_explode "
    "variant_explode_outer collations sql_keywords"
)
NON_DETERMINISTIC = names(
    "rand randn random randstr uniform uuid shuffle now current_timestamp current_date curdate current_time "
    "localtimestamp localtime current_user session_user user current_database current_schema current_catalog "
    "current_timezone version"
)
NEVER = names("reflect java_method try_reflect")  # they call any static method of Java
BY_PARTITION = names(
    "monotonically_increasing_id spark_partition_id input_file_name input_file_block_start input_file_block_length"
)
_DATE_LITERALS = names("date timestamp timestamp_ntz timestamp_ltz")
_MOVING_DATES = names("now today tomorrow yesterday")
_AGGREGATES = names(
    "any some every mean std collect_list collect_set listagg string_agg percentile percentile_approx "
    "approx_percentile approx_top_k bit_and bit_or bit_xor count_min_sketch histogram_numeric hll_sketch_agg "
    "hll_union_agg try_sum try_avg product schema_of_json_agg schema_of_variant_agg row_number"
) | {name.lower() for name, function in exp.FUNCTION_BY_NAME.items() if issubclass(function, exp.AggFunc)}

AGGREGATES = {  # by name in SQL
    **{
        name: name for name in ("count", "sum", "avg", "min", "max", "var_pop", "var_samp", "stddev_pop", "stddev_samp")
    },
    "count_if": "count_if",
    **{"mean": "avg", "variance": "var_samp", "stddev": "stddev_samp", "std": "stddev_samp"},
    **{name: name for name in ("approx_count_distinct", "approx_percentile", "approx_top_k")},
    "percentile_approx": "approx_percentile",
    **{"max_k": "max_k", "min_k": "min_k"},
    **{"bool_and": "bool_and", "every": "bool_and", "bool_or": "bool_or"},  # any and some also quantify LIKE
}

_CURES = {  # what comes nearest to aggregates that are not supported
    **dict.fromkeys(("median", "percentile", "percentile_cont", "percentile_disc"), "approx_percentile(x, 0.5)"),
    **dict.fromkeys(("any_value", "first", "first_value", "last", "last_value"), "min(x) or max(x)"),
    **dict.fromkeys(("max_by", "min_by"), "max(x) or ORDER BY x DESC LIMIT 1 in an output window"),
    "mode": "approx_top_k(x, 1)",
}


def refuse_functions(
    text: SqlText, tokens: Tokens, nodes: Iterable[exp.Expr], exact_clause: str | None, *, stars: bool = True
) -> None:
    """Refuse what cannot be evaluated row by row; by name, since sqlglot has no class for some of it.

    `exact_clause` is the clause if only what is deterministic can be there; `stars` says that no `*` can be inside.
    """
    for i, token in enumerate(tokens):
        name = token.name.casefold()
        if exact_clause and (moving := moving_at(tokens, i)):
            raise text.error(token, not_deterministic(moving, exact_clause))
        if not _is_evaluated(tokens, i):
            continue
        quantifies = name in ("any", "some") and i > 0 and tokens[i - 1].kind in (T.LIKE, T.ILIKE)
        if name in _GENERATORS:
            raise text.error(token, f"the generator {name} is not supported; use it before the stream is joined")
        if name in ("window", "session_window"):
            raise text.error(token, f"{name}() is not supported; write the window after the stream, in brackets")
        if name in _AGGREGATES and not quantifies:
            raise text.error(token, _refused_aggregate(name, exact_clause))
        if name in NEVER:
            raise text.error(token, calls_java(name))
        if name in BY_PARTITION:
            raise text.error(token, tells_of_partitions(name))
    for node in nodes if stars else ():
        if (star := node.find(exp.Star)) and star is not node and not isinstance(star.parent, exp.Column):
            raise text.error(
                tokens[0], f"* inside an expression is not supported; name the columns, {text.excerpt_of(tokens)}"
            )


def moving_at(tokens: Tokens, i: int) -> str | None:
    """What is not deterministic at a place, as it is called; None where nothing is."""
    name = tokens[i].name.casefold()
    if name in _DATE_LITERALS and moving_date(_string_at(tokens, i + 1)):
        return f"{name} {tokens[i + 1].text}"
    is_clock = name == "unix_timestamp" and [token.kind for token in tokens[i + 1 : i + 3]] == [T.L_PAREN, T.R_PAREN]
    return name if _is_evaluated(tokens, i) and (name in NON_DETERMINISTIC or is_clock) else None


def _is_evaluated(tokens: Tokens, i: int) -> bool:
    """Whether a function is called at a place, with brackets or as `current_date` without."""
    calls = i + 1 < len(tokens) and tokens[i + 1].kind is T.L_PAREN
    return not _is_field(tokens, i) and (calls or tokens[i].kind.name.startswith(("CURRENT_", "LOCALTIME")))


def _refused_aggregate(name: str, clause: str | None) -> str:
    if clause is not None:
        cure = "write the condition after HAVING" if clause == "WHERE or ON" else "take one of them out"
        return f"the aggregate {name} cannot be in {clause}; {cure}"
    if name in _CURES:
        return f"the aggregate {name} is not supported; write {_CURES[name]}"
    supported = sorted(set(AGGREGATES.values()), key=lambda one: (one.startswith("approx_"), one))
    return f"the aggregate {name} is not supported; use {', '.join(supported)}"


def is_call(tokens: Tokens, i: int, known: Collection[str]) -> bool:
    """Whether a call of a known function, by its plain name, begins at a place."""
    if not (i + 1 < len(tokens) and tokens[i + 1].kind is T.L_PAREN and tokens[i].name.casefold() in known):
        return False
    return i == 0 or tokens[i - 1].kind not in (T.LIKE, T.ILIKE, T.DOT)


def not_deterministic(name: str, clause: str) -> str:
    """Why a function cannot be in a clause."""
    return f"{name} is not deterministic and so cannot be in {clause}"


def calls_java(name: str) -> str:
    """Why a function is never allowed."""
    return f"{name} calls Java methods, which may do anything, and is not allowed; use a function of Spark SQL"


def tells_of_partitions(name: str) -> str:
    """Why a function means nothing in a join of streams."""
    return f"{name} tells how Spark reads its input, which answers do not depend on; add it as a column in the source"


def moving_date(text: str | None) -> bool:
    """Whether Spark reads a text as a time that depends on when it is read, as it does `now` or `today UTC`."""
    words = (text or "").casefold().split()
    return bool(words) and words[0] in _MOVING_DATES


def _string_at(tokens: Tokens, i: int) -> str | None:
    return tokens[i].name if i < len(tokens) and tokens[i].kind in (T.STRING, T.RAW_STRING) else None


def _is_field(tokens: Tokens, i: int) -> bool:
    """Whether a name follows a dot, other than one behind the catalog of Spark's own functions."""
    return i > 0 and tokens[i - 1].kind is T.DOT and not (i > 1 and tokens[i - 2].name.casefold() == "builtin")
