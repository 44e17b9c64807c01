"""What kept a query from starting is bad input, unless Java has ended, then or in a micro-batch."""

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from watersmeet.errors import InputError, RunError
from watersmeet.spark.failures import explain, refusal


def raised(error: Exception, hidden_by: Exception | None = None) -> Exception:
    """An error as it is caught, perhaps while another one was being handled."""
    try:
        try:
            raise error
        except Exception:
            if hidden_by is None:
                raise
            raise hidden_by from None
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    "end",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "no"),
        Py4JError("An error occurred while calling o1289.union"),  # half an answer
    ],
)
def test_java_that_ends_is_no_bad_input(end: Exception) -> None:
    for error in (raised(end), raised(end, InputError("stream 'a': Spark cannot open its source"))):
        for told in (refusal(error, "q"), explain(error, "q")):
            assert isinstance(told, RunError) and "Spark's Java process ended unexpectedly" in str(told)


def test_all_else_is() -> None:
    wrong = InputError("unknown column 'x'")
    assert refusal(raised(wrong), "q") is explain(raised(wrong), "q") is wrong
    assert refusal(raised(KeyError("k"), wrong), "q") is wrong
    unknown = Py4JError("An error occurred while calling o1.x. Trace:\npy4j.Py4JException: Method x does not exist")
    assert isinstance(refusal(raised(unknown), "q"), InputError)
    told = refusal(raised(ValueError("something odd")), "q")
    assert isinstance(told, InputError) and str(told) == "query 'q' cannot start: something odd"
