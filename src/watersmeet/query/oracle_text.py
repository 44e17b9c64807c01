"""Names and small pieces of SQL that all statements of the oracle have in common."""

# Names of our own in tables that hold the user's columns.
ARRIVAL, TS, RANK, FROM, TO, END = "__arrival", "__ts", "__rank", "__from", "__to", "__end"
FIRST_US, NEVER_US = -(2**63), 2**63 - 1
NEVER = 2**62


def interval(ts: str, window_us: int) -> str:
    """The start of the aligned interval; DuckDB's remainder has the sign of the dividend, so it is made positive."""
    return f"{ts} - ({ts} % {window_us} + {window_us}) % {window_us}"


def quoted(name: str) -> str:
    """A name as DuckDB reads it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
