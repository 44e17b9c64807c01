"""Texts without what is nobody's business who looks at a page: directories, and values that look like secrets."""

import re
from functools import lru_cache

_NAMES = (
    "password|passwd|pwd|passphrase|secret|token|credential|signature|authorization|"
    "(?:private|api|access|account|shared|sas)[._-]?key"
)
_NAME = rf"(?<![\w.-])(?:[\w.-]*(?:{_NAMES})[\w.-]*|sig)"
_QUOTED = r"'(?:[^'\\]|''|\\.)*'" + r'|"(?:[^"\\]|\\.)*"'
_SECRETS = re.compile(rf"""(?i)({_NAME}["']?\s*(?:=>|[=:])\s*)(?:{_QUOTED}|[^\s;,&'")\]}}]+)""")
_BY_LOOKS = re.compile(
    r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # S3
    r"|\beyJ[\w-]+\.[\w-]+\.[\w-]*"  # JSON web tokens
    r"|(?i:(?<=\bbearer )|(?<=\bbasic ))[\w.+/=~-]{8,}"
)
_USER = re.compile(r"(\w://)[^\s/'\"]+@")
_NAME_IN_PATH = r"[^\s/'\"`,;:()?]+"
_QUOTED_PATHS = re.compile(r"(['\"])(?:file:(?://)?)?/[^'\"\n]*/([^'\"/\n]+)\1")  # may have spaces
_PATHS = re.compile(rf"(?:(?<=[\s'\"`(\[{{=:,<>|])|^)(?:file:(?://)?|~[\w.-]*)?(?:/{_NAME_IN_PATH})+/({_NAME_IN_PATH})")
_IN_STORES = re.compile(rf"(\w://[^\s/'\"`,;()]+)(?:/{_NAME_IN_PATH})+/({_NAME_IN_PATH})")

# In SQL a name beside a value is a comparison, with another column more often than with a literal.
_COMPARED = r"\s*(?:<=>|<>|!=|=>|[<>=]=?|:|\b(?:not\s+)?(?:i?like|rlike|regexp)\b)\s*"
_VALUE = rf"(?:{_QUOTED}|\b\d[\w.]*)"
_SECRET_LITERALS = re.compile(rf"(?i)({_NAME}[\"'`]?{_COMPARED}){_VALUE}")
_SECRET_LISTS = re.compile(rf"(?i)({_NAME}`?\s+(?:not\s+)?in\s*\(\s*){_VALUE}(?:\s*,\s*{_VALUE})*")
_SECRET_OPTIONS = re.compile(rf"(?i)({_NAME}['\"`]?\s+)(?:{_QUOTED})")
_LITERALS_OF_SECRETS = re.compile(rf"(?i){_VALUE}(\s*(?:<=>|<>|!=|==?)\s*`?{_NAME})")
_TEXTS_IN_SQL = re.compile(rf"(?s){_QUOTED}|`[^`]*`|--[^\n]*|/\*.*?\*/")


@lru_cache(maxsize=4096)
def redacted(text: str) -> str:
    """A text in which a path has its last name only, and a secret no value.

    >>> redacted("site ams: /var/lib/run 7/x.parquet and /data/in/a.json, password=hunter2; s3://me:pw@host/x")
    'site ams: …/run 7/x.parquet and …/a.json, password=…; s3://…@host/x'
    """
    text = _BY_LOOKS.sub("…", text)
    text = _without_literals(_SECRETS.sub(r"\1…", text))
    return _without_paths(_USER.sub(r"\1…@", text))


@lru_cache(maxsize=4096)
def redacted_sql(text: str) -> str:
    """The same of SQL, or of a plan: conditions stay, without the literals that secrets are compared with.

    >>> redacted_sql("SELECT a.k FROM a, b WHERE a.token = b.token AND a.token <> 'x y' AND b.url = 'ftp://me:pw@h/x'")
    "SELECT a.k FROM a, b WHERE a.token = b.token AND a.token <> '…' AND b.url = 'ftp://…@h/x'"
    """
    text = _SECRET_OPTIONS.sub(r"\1'…'", _without_literals(text))
    return _TEXTS_IN_SQL.sub(_redacted_part, text)


@lru_cache(maxsize=4096)
def redacted_plan(text: str) -> str:
    """The same of a plan or an operator, which has SQL in it and may name files.

    >>> redacted_plan("scan a of /data/in/a.json where a.token = b.token")
    'scan a of …/a.json where a.token = b.token'
    """
    return _without_paths(redacted_sql(text))


def _redacted_part(found: re.Match[str]) -> str:
    part = found[0]
    return part[0] + redacted(part[1:-1]) + part[-1] if part[0] in "'\"`" else redacted(part)


def _without_literals(text: str) -> str:
    text = _SECRET_LISTS.sub(r"\1'…'", _SECRET_LITERALS.sub(r"\1'…'", text))
    return _LITERALS_OF_SECRETS.sub(r"'…'\1", text)


def _without_paths(text: str) -> str:
    text = _QUOTED_PATHS.sub(r"\1…/\2\1", text)
    return _IN_STORES.sub(r"\1/…/\2", _PATHS.sub(r"…/\1", text))
