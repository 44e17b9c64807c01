"""Names of what a topology has, and what is said where one is wrong."""

import re
from collections.abc import Sequence

from watersmeet.errors import TopologyError, did_you_mean

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_NAME = 64  # names of files and directories are made of them


def check_name(name: str, what: str) -> str:
    """The name if it is a plain word; `what` is the kind of thing it names."""
    if not _NAME.fullmatch(name):
        raise TopologyError(f"{what} name {name!r} must be letters, digits and underscores, not starting with a digit")
    if len(name) > _LONGEST_NAME:
        raise TopologyError(f"{what} name {name!r} has {len(name)} characters; {_LONGEST_NAME} is the limit")
    return name


def check_site(site: str, what: str, known: Sequence[str]) -> str:
    """The site if it is known; `what` is the thing that refers to it."""
    if site not in known:
        raise TopologyError(f"{what}: unknown site {site!r}; {did_you_mean(site, known)}")
    return site
