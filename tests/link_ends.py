"""Both ends of a link from fra to nyc, over any transport."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scenes import PATIENCE_S

from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.storage.wire import UNKNOWN, Message, Parcel, index_parcel
from watersmeet.spark.links.directory import DirectoryLinks
from watersmeet.spark.links.objects import StoreLinks
from watersmeet.spark.links.protocol import LinkDirection, LinkEnd, Links, Role, Sealed, open_links
from watersmeet.spark.links.seal import OPEN, Seal, parcel_context
from watersmeet.spark.store.object_store import open_store

LINK = LinkDirection("fra", "nyc")


class Place(Protocol):
    """Where links are."""

    def open(self, site: str) -> Links:
        """The links of a site there, as a new process has them."""
        ...

    def lose(self) -> None:
        """Lose everything that is there."""
        ...

    def close(self) -> None:
        """End all processes."""
        ...


@dataclass
class DirectoryPlace:
    """Links in a directory."""

    root: Path
    seal: Seal = OPEN

    def open(self, site: str) -> Links:
        return DirectoryLinks(self.root, site, seal=self.seal)

    def lose(self) -> None:
        self.root = self.root.with_name(f"{self.root.name}-new")

    def close(self) -> None:
        return


@dataclass
class StorePlace:
    """Links in an object store."""

    url: str
    seal: Seal = OPEN

    def open(self, site: str) -> Links:
        return StoreLinks(open_store(self.url), site, self.seal)

    def lose(self) -> None:
        self.url += "-new"

    def close(self) -> None:
        return


@dataclass
class KafkaPlace:
    """Links in topics of a broker."""

    servers: str
    prefix: str
    seal: Seal = OPEN
    opened: list[Links] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    wait_s: float = PATIENCE_S  # for brokers that are there
    start_s: float = 0.0  # then nobody waits any more

    def open(self, site: str) -> Links:
        from watersmeet.spark.links.kafka import KafkaLinks

        settings = {"bootstrap.servers": self.servers, **self.options}
        waits = {"wait_s": self.wait_s, "start_s": self.start_s}
        self.opened.append(KafkaLinks(settings, self.prefix, site, self.seal, **waits))
        return self.opened[-1]

    def lose(self) -> None:
        self.prefix += "-new"

    def close(self) -> None:
        for links in self.opened:
            links.close()


def make_parcels(directory: Path, seal: Seal = OPEN, size: int = 0) -> list[Sealed]:
    """Three parcels in the checkpoint of their sender."""
    state = directory / "state"
    state.mkdir()
    sealed = []
    for number in (1, 2, 3):
        path = state / f"parcel-{number}"
        path.write_bytes(Parcel(number, (Message(0, 1_000 * number, payload=os.urandom(size)),)).pack())
        context = parcel_context(*LINK, number, 1)
        sealed.append(Sealed(number, str(path), lambda data, context=context: seal.seal(context, data)))  # type: ignore[misc]
    return sealed


def start(place: Place, site: str, ledger: SiteLedger | None = None, run: str = "") -> tuple[Links, SiteLedger]:
    """Start one end of the link on a checkpoint: the links, and the ledger that was committed by that."""
    links, before = place.open(site), ledger or SiteLedger()
    committed: list[SiteLedger] = []
    end = LinkEnd(run or f"run-of-{site}", "same", before.epoch + 1, f"start-{os.urandom(4).hex()}")
    senders, readers = ([], ["nyc"]) if site == "fra" else (["fra"], [])
    open_links(links, site, senders, readers, end, before, committed.append)
    return links, committed[0]


def ends(place: Place) -> tuple[Links, Links]:
    """Both ends of a link."""
    return start(place, "fra")[0], start(place, "nyc")[0]


def run_of(links: Links) -> str | None:
    """Whose parcels a link has."""
    links.catch_up()
    end = links.end(LINK, Role.SENDER)
    return None if end is None else end.run


def acknowledged(links: Links) -> tuple[int, int]:
    """What the reader has, and the latest event time it knows of."""
    links.catch_up()
    end = links.end(LINK, Role.READER)
    return (0, UNKNOWN) if end is None else (end.number, end.pace)


def arrived(reader: Links, after: int = 0) -> dict[int, bytes]:
    """What has arrived from fra, opened."""
    reader.catch_up()
    found = reader.arrived("fra", after)
    return {number: reader.seal.open(parcel_context(*LINK, number, 1), data) for number, data in found}


def numbers(reader: Links, after: int = 0) -> list[int]:
    """What has arrived from fra, by the numbers that the transport and the parcels themselves give."""
    found = arrived(reader, after)
    assert list(found) == [index_parcel(data).number for data in found.values()]
    return list(found)
