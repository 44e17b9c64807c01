"""Parameters of a topology file: `${region}` in any value, with defaults under `parameters:`.

Values are replaced after the YAML is parsed: what is given is always text, and never changes the structure of the file.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from watersmeet.errors import InputError, did_you_mean
from watersmeet.topology.secrets import REFERENCE
from watersmeet.topology.yaml_tree import Entry

KEY = "parameters"
_PLACE = re.compile(r"\$(\$)?\{([^{}]*)\}")  # `$${x}` is the text `${x}`
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """The parameters that a command line gives, as NAME=VALUE.

    >>> parse_settings(["region=eu", "path=a=b"])
    {'region': 'eu', 'path': 'a=b'}
    """
    given: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise InputError(f"--set {setting!r} must be NAME=VALUE, such as --set region=eu")
        given[name] = value
    return given


def with_parameters(root: Entry, given: Mapping[str, str]) -> Entry:
    """The document with a value in place of each `${name}`: what was given, else the default of the file."""
    top = root.mapping("the topology")
    defaults = top[KEY].mapping(KEY) if KEY in top else {}
    values: dict[str, str] = {}
    for name, entry in defaults.items():
        if not _NAME.fullmatch(name):
            raise entry.fail(f"parameter {name!r} must be letters, digits and underscores")
        if name in given or entry.value is not None:  # without a default it must be given
            values[name] = given[name] if name in given else entry.text(f"parameter {name!r}")
    for name in given:
        if name not in defaults:
            raise InputError(f"unknown parameter {name!r}: not under `{KEY}:`; {did_you_mean(name, defaults)}")
    return replace(root, value={key: _filled(entry, values, defaults) for key, entry in top.items() if key != KEY})


def _filled(entry: Entry, values: Mapping[str, str], defaults: Mapping[str, Entry]) -> Entry:
    value = entry.value
    if isinstance(value, dict):
        return replace(entry, value={key: _filled(one, values, defaults) for key, one in value.items()})
    if isinstance(value, list):
        return replace(entry, value=[_filled(one, values, defaults) for one in value])
    if not isinstance(value, str) or "${" not in value:
        return entry

    def fill(place: re.Match[str]) -> str:
        escape, name = place.groups()
        if escape:
            return f"${{{name}}}"
        if REFERENCE.fullmatch(place.group()):  # the value is looked up where it is used
            return place.group()
        if name in values:
            return values[name]
        if name in defaults:
            raise entry.fail(f"parameter {name!r} has no default; give it a value with --set {name}=...")
        raise entry.fail(
            f"unknown parameter {name!r}; {did_you_mean(name, defaults)}: add it under `{KEY}:`, or write $${{{name}}} "
            "for the text itself"
        )

    return replace(entry, value=_PLACE.sub(fill, value))
