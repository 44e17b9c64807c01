"""Files of a checkpoint and of a link that somebody has put a pickle in: nothing of it is ever run."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from watersmeet.program.site.adoption import program_of
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.storage.packing import unpack_rows
from watersmeet.program.storage.wire import index_parcel, unpack_schema
from watersmeet.spark.checkpoint import IDENTITY, LEDGER, read_identity, read_ledger
from watersmeet.spark.files import FileShelf
from watersmeet.spark.links.ends import unpack_end
from watersmeet.spark.links.protocol import LinkDirection, Role
from watersmeet.spark.links.seal import OPEN
from watersmeet.spark.resume import known_versions
from watersmeet.spark.tasks import read_program


class Poison:
    """Makes a directory when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def by_name(read: Callable[[Path], object], name: str) -> Callable[[Path, bytes], object]:
    """A reader of a file of the checkpoint."""

    def put_and_read(directory: Path, data: bytes) -> object:
        (directory / name).write_bytes(data)
        return read(directory)

    return put_and_read


def state_file(read: Callable[[FileShelf, str], object]) -> Callable[[Path, bytes], object]:
    """A reader of a state file, under a name that its size and checksum fit."""

    def put_and_read(directory: Path, data: bytes) -> object:
        shelf = FileShelf(str(directory))
        return read(shelf, shelf.put_bytes("poison", data))

    return put_and_read


def of_bytes(read: Callable[[bytes], object]) -> Callable[[Path, bytes], object]:
    return lambda directory, data: read(data)


READERS: dict[str, Callable[[Path, bytes], object]] = {
    "ledger": by_name(read_ledger, LEDGER),
    "identity": by_name(read_identity, IDENTITY),
    "program": by_name(lambda at: read_program(str(at / "program.json"), "here"), "program.json"),
    "versions at a start": by_name(lambda at: versions_at_a_start(at), LEDGER),
    "versions": state_file(lambda shelf, name: program_of(shelf, SiteLedger(versions=name), "here")),
    "segment": state_file(lambda shelf, name: shelf.get(name)),
    "parcel": of_bytes(index_parcel),
    "columns of a parcel": of_bytes(unpack_schema),
    "rows of a parcel": of_bytes(lambda data: unpack_rows(data, pa.schema([("a", pa.int64())]))),
    "end of a link": of_bytes(lambda data: unpack_end(data, LinkDirection("fra", "nyc"), Role.SENDER, 1, OPEN)),
}


def versions_at_a_start(directory: Path) -> object:
    found = known_versions(directory.parent, [directory.name], at_start=True)
    if not found:
        raise ValueError("there are no versions")
    return found


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_in_a_file_is_refused_and_not_run(tmp_path: Path, what: str, protocol: int) -> None:
    place, mark = tmp_path / "here", tmp_path / "was-run"
    place.mkdir()
    poison = pickle.dumps(Poison(mark), protocol)
    with pytest.raises(Exception, match=r".+"):
        READERS[what](place, poison)
    assert not mark.exists()
    pickle.loads(poison)
    assert mark.exists(), "it would have been noticed"
