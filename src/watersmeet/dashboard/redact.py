"""Texts without what is nobody's business who looks at a page: directories, and values that look like secrets."""

import re
from functools import lru_cache

_SECRET_NAMES = "password|passwd|secret|token|credential|api[_-]?key|access[_-]?key"
_SECRETS = re.compile(rf"(?i)\b([\w.-]*(?:{_SECRET_NAMES})[\w.-]*)(\s*[=:]\s*)[^\s;,]+")
_USER = re.compile(r"(\w+://)[^\s/@]+@")
_PATHS = re.compile(r"(?:(?<=[\s'\"(=])|^)(?:file:)?(?:/[^\s/'\",;:()]+)+/([^\s/'\",;:()]+)")


@lru_cache(maxsize=1024)
def redacted(text: str) -> str:
    """A text in which a path has its last name only, and a secret no value.

    >>> redacted("site ams: /var/lib/run 7/x.parquet and /data/in/a.json, password=hunter2; s3://me:pw@host/x")
    'site ams: …/run 7/x.parquet and …/a.json, password=…; s3://…@host/x'
    """
    text = _SECRETS.sub(r"\1\2…", text)
    text = _USER.sub(r"\1…@", text)
    return _PATHS.sub(r"…/\1", text)
