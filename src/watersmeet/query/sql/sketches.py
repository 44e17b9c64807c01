"""What follows the values in calls of aggregates: numbers, by which their size and their results are decided.

approx_count_distinct(x[, relative_error])       parameters: relative_error, if given
approx_percentile(x, share or array[, accuracy])  parameters: accuracy, 1 for an array or 0, shares
approx_top_k(x[, k[, tracked]])                   parameters: k, tracked
max_k(x, k), min_k(x, k)                          parameters: k
"""

from collections.abc import Sequence

from sqlglot.tokenizer_core import TokenType as T

from watersmeet.query.sql.tokens import SqlText, Tokens

WITH_NUMBERS = ("approx_count_distinct", "approx_percentile", "approx_top_k", "max_k", "min_k")

_ACCURACY, _TOP, _TRACKED, _MOST = 10_000.0, 5.0, 10_000.0, 1_000_000.0


def split_arguments(inside: Tokens) -> list[Tokens]:
    """The arguments of a call, by the commas between them."""
    found: list[list] = [[]]  # type: ignore[type-arg]
    for token in inside:
        if token.kind is T.COMMA and token.depth == inside[0].depth:
            found.append([])
        else:
            found[-1].append(token)
    return list(found)


def read_parameters(text: SqlText, name: str, call: Tokens, given: Sequence[Tokens]) -> tuple[float, ...]:
    """The numbers of an aggregate."""
    lists = [_numbers(text, name, call, tokens) for tokens in given]
    match name, lists:
        case "approx_count_distinct", []:
            return ()
        case "approx_count_distinct", [[error]] if 0.004 <= error <= 0.4:
            return (error,)
        case "approx_percentile", [[*shares]] if shares and all(0 <= share <= 1 for share in shares):
            return (_ACCURACY, float(_is_array(given[0])), *shares)
        case "approx_percentile", [[*shares], [accuracy]] if (
            shares and all(0 <= share <= 1 for share in shares) and 1 <= accuracy <= _MOST and accuracy == int(accuracy)
        ):
            return (accuracy, float(_is_array(given[0])), *shares)
        case "approx_top_k", ([] | [[_]] | [[_], [_]]) as numbers:
            k, tracked = (*(number for (number,) in numbers), *(_TOP, _TRACKED)[len(numbers) :])
            if 1 <= k <= tracked <= _MOST and k == int(k) and tracked == int(tracked):
                return (k, tracked)
        case (("max_k" | "min_k"), [[k]]) if 1 <= k <= _MOST and k == int(k):
            return (k,)
    usage = {
        "approx_count_distinct": "(x) or (x, 0.02) with a relative error from 0.004 to 0.4",
        "approx_percentile": "(x, 0.5) or (x, array(0.5, 0.99), 10000) with shares from 0 to 1 and an accuracy",
        "approx_top_k": "(x), (x, 5) or (x, 5, 10000) with how many values it has and tracks",
        **dict.fromkeys(("max_k", "min_k"), "(x, 3) with how many values it has"),
    }
    raise text.error(call[0], f"{name} takes {usage[name]}, {text.excerpt_of(call)}")


def _is_array(tokens: Tokens) -> bool:
    return tokens[0].name.casefold() == "array"


def _numbers(text: SqlText, name: str, call: Tokens, tokens: Tokens) -> list[float]:
    """A number, or those of an array."""
    inside = [tokens]
    if tokens and _is_array(tokens) and len(tokens) > 3 and tokens[-1].kind is T.R_PAREN:
        inside = split_arguments(tokens[2:-1])
    found = []
    for one in inside:
        if len(one) != 1 or one[0].kind is not T.NUMBER:
            raise text.error(call[0], f"{name} takes numbers after its first argument, {text.excerpt_of(call)}")
        try:
            found.append(float(one[0].text))
        except ValueError:
            raise text.error(one[0], f"{one[0].text!r} is not a plain number; write it without a suffix") from None
    return found
