"""What threads of a site read while another one commits."""

from types import SimpleNamespace
from typing import Any

import pytest

from watersmeet.spark.site.state import SiteState


class Replaced:
    """A site whose ledger another thread replaces after so many looks, with the file of versions that it names."""

    def __init__(self, looks: int) -> None:
        self.left, self.files, self._read_versions = looks, {"second": "newer versions"}, None
        self.engine = SimpleNamespace(versions=self.read)
        self.ledgers = SimpleNamespace(versions="first"), SimpleNamespace(versions="second")
        self.reads: list[str] = []

    @property
    def ledger(self) -> Any:
        self.left -= 1
        return self.ledgers[self.left < 0]

    def read(self, ledger: Any) -> str:
        self.reads.append(ledger.versions)
        if ledger.versions not in self.files:
            raise FileNotFoundError(ledger.versions)
        return self.files[ledger.versions]


def versions_of(site: Replaced) -> str:
    return SiteState.versions.fget(site)  # type: ignore[attr-defined, no-any-return]


def test_versions_that_are_replaced_while_they_are_read_are_read_anew_and_once() -> None:
    site = Replaced(1)
    assert versions_of(site) == versions_of(site) == "newer versions"
    assert site.reads == ["first", "second"]


def test_versions_that_are_lost_are_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        versions_of(Replaced(100))
