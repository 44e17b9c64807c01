"""UFL: text to op-graphs and back, and errors that say where and what."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.errors import UflError
from watersmeet.program.pier.graph import (
    QUERY_ID,
    QUERY_TIME,
    Array,
    Call,
    ConstantArgument,
    Expression,
    NamedValues,
    Operator,
    OpGraph,
    Predicate,
    Setting,
    Settings,
    TupleField,
    UflQuery,
    expanded,
)
from watersmeet.program.pier.ufl.format import format_ufl
from watersmeet.program.pier.ufl.parse import parse_ufl

EXAMPLE = r"""
# every reading that is hot, to whoever asked
%opgraph(hot) {
  duration = 30
  ns = "queries"
  rid = room-1
  %operator(readings) { type = SCAN implementation = Local table = heat }
  %operator(only.hot) {
    type = selection
    sources[] = readings
    %predicate(p) {
      type = or
      %predicate(a) { type = atomic leftexpression = $degrees op = ">" rightexpression = 30::integer }
      %predicate(b) { type = atomic leftexpression = lower($"the room") op = equals rightexpression = "r\"1\\"::string }
    }
  }
  %operator(out) { type = result sources[] = only.hot Options[FE] = 100 Options[FW] = 20
                   RenameList[0] = Column1 RenameList[40] = Column2 RenameList[2] = Column3 RenameList[] = Column4
                   numbers[*] = x numbers[7] = "\qi" numbers[8] = "\u0041\qt$$" }
}
"""


def test_the_example_of_every_form() -> None:
    (graph,) = parse_ufl(EXAMPLE).graphs
    assert (graph.settings.get("duration"), graph.settings.get("ns"), graph.settings.get("rid")) == (
        "30",
        "queries",
        "room-1",
    )
    assert [operator.name for operator in graph.operators] == ["readings", "only.hot", "out"]
    assert [operator.line for operator in graph.operators] == [7, 8, 17]
    (either,) = graph.operators[1].predicates
    left, right = either.predicates
    assert left.settings.get("rightexpression") == ConstantArgument("30", "integer")
    assert right.settings.get("leftexpression") == Call("lower", (TupleField("the room"),))
    assert right.settings.get("rightexpression") == ConstantArgument('r"1\\', "string")
    out = graph.operators[2].settings
    assert out.get("options") == NamedValues((("FE", "100"), ("FW", "20")))
    assert out.get("renamelist") == Array(((0, "Column1"), (2, "Column3"), (40, "Column2"), (41, "Column4")))
    assert out.get("numbers") == NamedValues((("7", QUERY_ID), ("8", f"A{QUERY_TIME}$")))


def test_elements_without_a_number_follow_all_that_have_one() -> None:
    (graph,) = parse_ufl("%opgraph(g) { a[] = x a[0] = y a[] = z a[3] = w %operator(s) { type = scan } }").graphs
    assert graph.settings.get("a") == Array(((0, "y"), (3, "w"), (4, "x"), (5, "z")))


def test_identifier_and_time_are_expanded() -> None:
    (graph,) = expanded(parse_ufl(EXAMPLE), "q7", 12).graphs
    assert graph.operators[2].settings.get("numbers") == NamedValues((("7", "q7"), ("8", "A12$")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: the text is empty"),
        ("%opgraph(g) {", "line 1, column 14: the text ends too early"),
        ("%opgraf(g) { }", "line 1, column 2: unknown kind of object 'opgraf'; did you mean 'opgraph'?"),
        ("%opgraph(g) { a = }", "line 1, column 19: '}' is not expected here; expected $ or a name or a quoted text"),
        ("%opgraph(g) {\n a = ! }", "line 2, column 6: the character '!' is not expected here"),
        ('%opgraph(g) {\n a = "b }', "line 2, column 6: a quoted text has no end"),
        ("%operator(g) { }", "line 1, column 2: an operator stands outside of any opgraph"),
        ("%opgraph(g) { %predicate(p) { } }", "column 16: a predicate stands in an opgraph; it belongs in an operator"),
        ("%opgraph(g) { %opgraph(h) { } }", "an opgraph stands in an opgraph; it belongs outside of any other object"),
        ("%opgraph(g) { a = 1 a = 2 }", "column 21: a is given more than once; write a[] for several values"),
        ("%opgraph(g) { a[0] = 1 a[b] = 2 }", "a[b]: a is an array by its first use; give a number"),
        ("%opgraph(g) { a[0] = 1 a[0] = 2 }", "a[0] is given twice"),
        ("%opgraph(g) { a[x] = 1 a[x] = 2 }", "a[x] is given twice"),
        ("%opgraph(g) { a = 5::int }", "column 22: unknown type 'int'; did you mean 'integer'?"),
        ("%opgraph(g) { a = five::integer }", "column 19: 'five' is no value of type integer"),
        (r'%opgraph(g) { a = "\x" }', r"column 19: unknown escape \x"),
        (r'%opgraph(g) { a = "\u00g0" }', "needs four hexadecimal digits"),
        ("%opgraph(g) { %operator(a) {} %operator(a) {} }", "column 32: two objects have the name 'a'"),
        ("%opgraph(g) { a = " + "f(" * 70 + ")" * 70 + "}", "functions are nested more than 64 levels deep"),
        ("%opgraph(g) { %operator(o) {" + "%predicate(p) {" * 70 + "}" * 72, "predicates are nested more than 64"),
    ],
)
def test_errors_say_where_and_what(text: str, message: str) -> None:
    with pytest.raises(UflError) as error:
        parse_ufl(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


names = st.text("abcXYZ019.*-_/", min_size=1, max_size=6)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda text: not any("\ufdd0" <= character <= "\ufdd1" for character in text)
) | st.sampled_from([QUERY_ID, f"a{QUERY_TIME}$b", "$", "\\$", '"$"'])
constants = st.builds(ConstantArgument, texts, st.just("string")) | st.builds(
    ConstantArgument, st.integers(-(1 << 63), (1 << 63) - 1).map(str), st.sampled_from(["integer", "double", "decimal"])
)
expressions: st.SearchStrategy[Expression] = st.recursive(
    constants | st.builds(TupleField, texts),
    lambda inner: st.builds(Call, texts, st.lists(inner, max_size=3).map(tuple)),
    max_leaves=6,
)
values = texts | expressions
arrays = st.dictionaries(st.integers(0, 50), values, min_size=1, max_size=4).map(
    lambda items: Array(tuple(sorted(items.items(), key=lambda item: item[0])))
)
tables = st.dictionaries((names | texts).filter(lambda name: name not in ("*", "")), values, max_size=4).map(
    lambda entries: NamedValues(tuple(entries.items()))
)
settings_: st.SearchStrategy[Settings] = st.lists(
    st.tuples(names, st.one_of(values, arrays, tables)), max_size=4, unique_by=lambda entry: entry[0].casefold()
).map(lambda entries: Settings(tuple[tuple[str, Setting], ...](entries)))


def unique_names(strategy: "st.SearchStrategy[object]") -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(strategy, max_size=3, unique_by=lambda each: getattr(each, "name", "")).map(tuple)


predicates = st.recursive(
    st.builds(Predicate, names, settings_),
    lambda inner: st.builds(Predicate, names, settings_, unique_names(inner)),
    max_leaves=4,
)
operators = st.builds(Operator, names, settings_, unique_names(predicates))
graphs = st.builds(OpGraph, names, settings_, unique_names(operators))
queries = unique_names(graphs).filter(bool).map(lambda graphs: UflQuery(graphs))  # type: ignore[arg-type]


@given(queries)
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_read_again(query: UflQuery) -> None:
    assert parse_ufl(format_ufl(query)) == query


@given(st.integers(0, len(EXAMPLE)), st.integers(0, 30), st.text(max_size=5))
@settings(max_examples=200, deadline=None)
def test_damaged_text_ends_in_one_sentence(start: int, length: int, instead: str) -> None:
    damaged = EXAMPLE[:start] + instead + EXAMPLE[start + length :]
    assert "Token(" not in message_of(damaged)


@given(st.text(st.sampled_from('%{}()[]=$":,\\ \nopgraphtez01::#\ufdd0'), max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_ends_in_one_sentence(text: str) -> None:
    assert "Token(" not in message_of(text)


def message_of(text: str) -> str:
    try:
        parse_ufl(text)
    except UflError as error:
        return str(error)
    return ""
