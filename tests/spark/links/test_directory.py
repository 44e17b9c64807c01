"""Links whose directory goes out of reach: one sentence says so, and everything is there when it is back."""

from pathlib import Path

import pytest

from watersmeet.program.site.engine import Outgoing
from watersmeet.program.storage.wire import Message, Parcel
from watersmeet.spark.files import FileShelf
from watersmeet.spark.links.directory import DirectoryLinks, LinkUnreadable, LinkUnwritable


@pytest.fixture
def outgoing(tmp_path: Path) -> list[Outgoing]:
    (tmp_path / "state").mkdir()
    shelf = FileShelf(str(tmp_path / "state"))
    parcels = [Parcel(number, (Message(0, 1_000 * number),)) for number in (1, 2)]
    return [Outgoing(one.number, shelf.put_bytes("parcel", one.pack()), len(one.pack())) for one in parcels]


def opened(root: Path) -> tuple[DirectoryLinks, DirectoryLinks, Path]:
    """Both ends of a link, and its directory."""
    fra, nyc = DirectoryLinks(root, "fra"), DirectoryLinks(root, "nyc")
    fra.open((), ["nyc"], "run-of-fra")
    nyc.open(["fra"], (), "run-of-nyc")
    return fra, nyc, root / "nyc" / "fra"


def numbers(links: DirectoryLinks, sender: str) -> list[int]:
    return [parcel.number for _, _, parcel in links.arrived(sender, 0)]


def test_a_link_whose_directory_becomes_a_file_is_named_at_both_ends(tmp_path: Path, outgoing: list[Outgoing]) -> None:
    fra, nyc, way = opened(tmp_path / "links")
    fra.publish("nyc", outgoing)
    assert (nyc.sender_of("fra"), numbers(nyc, "fra")) == ("run-of-fra", [1, 2])
    way.rename(tmp_path / "away")
    way.write_text("not a directory")
    told = rf"^link fra -> nyc cannot be read: Not a directory \({way}\); nothing is lost: it goes on when "
    with pytest.raises(LinkUnreadable, match=told + "the directory can be read again$"):
        nyc.sender_of("fra")
    with pytest.raises(LinkUnreadable, match=told):
        nyc.has_arrived("fra", 0)
    with pytest.raises(LinkUnreadable, match=told):
        numbers(nyc, "fra")
    with pytest.raises(LinkUnwritable, match=r"^link fra -> nyc cannot be written: Not a directory"):
        nyc.acknowledge("fra", 2, 0)
    with pytest.raises(LinkUnwritable, match=r"^link fra -> nyc cannot be written: Not a directory"):
        fra.publish("nyc", outgoing)
    way.unlink()
    (tmp_path / "away").rename(way)
    assert (nyc.sender_of("fra"), numbers(nyc, "fra")) == ("run-of-fra", [1, 2])


def test_a_directory_that_changes_between_looking_and_opening(
    tmp_path: Path, outgoing: list[Outgoing], monkeypatch: pytest.MonkeyPatch
) -> None:
    fra, nyc, way = opened(tmp_path / "links")
    fra.publish("nyc", outgoing)
    way.rename(tmp_path / "away")
    monkeypatch.setattr(DirectoryLinks, "has_arrived", lambda *_: True)
    assert numbers(nyc, "fra") == [], "what is gone has not arrived"
    way.write_text("not a directory")
    with pytest.raises(LinkUnreadable, match=r"^link fra -> nyc cannot be read: Not a directory"):
        numbers(nyc, "fra")


def test_what_tasks_tell_of_a_parcel_out_of_reach(tmp_path: Path, outgoing: list[Outgoing]) -> None:
    fra, nyc, way = opened(tmp_path / "links")
    fra.publish("nyc", outgoing)
    (_, path, _), (_, other, _) = nyc.arrived("fra", 0)
    way.rename(tmp_path / "away")
    way.write_text("not a directory")
    with pytest.raises(OSError, match="Not a directory") as caught:
        FileShelf(str(tmp_path / "state")).get_bytes(path)
    trouble = nyc.why_unreadable(caught.value, "fra", path)
    assert isinstance(trouble, LinkUnreadable)
    assert str(trouble).startswith(f"link fra -> nyc cannot be read: Not a directory ({way}); nothing is lost")
    # From another process it comes as the text of a traceback among other text.
    far = RuntimeError(f"Job aborted.\n  File site.py, line 1\nNotADirectoryError: {caught.value}\n\tat java")
    assert str(nyc.why_unreadable(far, "fra", path)) == str(trouble)
    assert nyc.why_unreadable(caught.value, "fra", other) is None
    assert nyc.why_unreadable(ValueError(f"{path} has no such row"), "fra", path) is None
