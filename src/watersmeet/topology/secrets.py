"""Options whose values are elsewhere: `${env:NAME}`, `${file:PATH}` and `${spark:spark.some.setting}`.

A topology keeps the reference: files, checkpoints, explain and events never have the value. It is looked up where
an option is used, in the process that uses it, and left out of every message of that process from then on.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from watersmeet.errors import InputError, hide_secret

REFERENCE = re.compile(r"\$\{(env|file|spark):([^{}]+)\}")
_LONGEST = 65_536


def resolved(
    options: Mapping[str, str], what: str, spark_setting: Callable[[str], str | None] | None = None
) -> dict[str, str]:
    """Options with values in place of references; `what` is what they are of, in the words of a message.

    >>> resolved({"user": "me"}, "the sink")
    {'user': 'me'}
    """

    def value_of(place: re.Match[str], option: str) -> str:
        kind, name = place.groups()
        value: str | None
        if kind == "env":
            value, where = os.environ.get(name), f"the environment has no variable {name}"
        elif kind == "file":
            value, where = _content(name), f"file {name} cannot be read"
        else:
            value = None if spark_setting is None else spark_setting(name)
            where = f"Spark's configuration has no {name}"
        if value is None:
            raise InputError(f"{what}: option {option!r} refers to {place.group()}, and {where}; set it")
        hide_secret(value)
        return value

    return {
        option: REFERENCE.sub(lambda place, option=option: value_of(place, option), text)  # type: ignore[misc]
        for option, text in options.items()
    }


def _content(path: str) -> str | None:
    try:
        return Path(path).read_bytes()[:_LONGEST].decode("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        return None
