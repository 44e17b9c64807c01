"""Stores of the cloud, through the library `obstore` (Rust's object_store): S3 and its likes, Google's, Azure's.

Credentials and settings come from the environment of each process (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`,
`GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME`, ...) or from the machine's role; they are never passed on.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from watersmeet.errors import InputError
from watersmeet.spark.store.protocol import Conflict, ObjectData, StoreFailed, Version

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

SCHEMES = ("s3", "gs", "az", "abfs", "abfss")
_REFUSAL = re.compile("<Code>(.{1,80}?)</Code> ?<Message>(.{1,300}?)</Message>")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_ATTEMPTS = 4  # at a conditional write of which it is not known whether it took place
_RETRY: "RetryConfig" = {"max_retries": 8, "retry_timeout": timedelta(seconds=90)}
_DELETED_AT_ONCE = 500
_ROLE_ADDRESS = "169.254.169.254"  # where machines of the cloud get credentials; asked where the environment has none
_PIECE_BYTES = 8 << 20  # that are in memory while an object is written to a file


def is_url(place: str | Path) -> bool:
    """Whether a place is named by a URL, whatever its scheme."""
    return _URL.match(str(place)) is not None  # a Path has made one slash of two


def local_directory(place: str | Path) -> Path | None:
    """The directory that a path or a URL of this machine names; None for other URLs.

    >>> local_directory("file:///a%20b"), local_directory("a b"), local_directory("s3://bucket/x")
    (PosixPath('/a b'), PosixPath('a b'), None)
    """
    if not is_url(place):
        return Path(place)
    parsed = urlparse(str(place))
    return Path(unquote(parsed.path)) if parsed.scheme == "file" else None


def is_object_url(place: str | Path) -> bool:
    """Whether a place is in an object store.

    >>> is_object_url("s3://bucket/x"), is_object_url("/tmp/x"), is_object_url("hdfs://host/x")
    (True, False, False)
    """
    found = _URL.match(str(place))
    return found is not None and found.group(1).lower() in SCHEMES


def is_installed() -> bool:
    """Whether the library is there, which is an extra."""
    return find_spec("obstore") is not None


def open_store(url: str | Path) -> "ObjectStore":
    """The store at a URL."""
    scheme, _, rest = str(url).partition(":")
    if scheme.lower() not in SCHEMES:
        why = "HDFS replaces no file on a condition, and where it is mounted none at all; " if scheme == "hdfs" else ""
        raise InputError(
            f"{url} is in no store that commits can be made in; {why}give a directory, which may be one that machines "
            f"share, or a URL that starts with one of {', '.join(f'{name}://' for name in SCHEMES)}"
        )
    return ObjectStore(f"{scheme.lower()}://{rest.strip('/')}")


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Objects below a URL; a value, so that tasks on other machines can open the same."""

    url: str

    def below(self, prefix: str) -> "ObjectStore":
        return ObjectStore(f"{self.url}/{prefix}")

    def get(self, key: str) -> ObjectData | None:
        with self._explained("read"):
            try:
                found = self._client.get(key)
            except FileNotFoundError:
                return None
            meta = found.meta
            return ObjectData(bytes(found.bytes()), Version(meta["e_tag"], meta["version"]))

    def has(self, key: str) -> bool:
        with self._explained("read"):
            try:
                self._client.head(key)
            except FileNotFoundError:
                return False
            return True

    def download(self, key: str, target: Path) -> bool:
        with self._explained("read"):
            try:
                found = self._client.get(key)
            except FileNotFoundError:
                return False
            with open(target, "wb") as file:
                for piece in found.stream(min_chunk_size=_PIECE_BYTES):
                    file.write(piece)
            return True

    def put(self, key: str, data: bytes | Path) -> None:
        with self._explained("written"):
            self._client.put(key, data)

    def create(self, key: str, data: bytes) -> Version:
        return self._on_condition(key, data, "create")

    def replace(self, key: str, data: bytes, version: Version) -> Version:
        condition = {"e_tag": version.e_tag, "version": version.number}
        return self._on_condition(key, data, {name: value for name, value in condition.items() if value is not None})

    def sizes(self, prefix: str = "") -> Mapping[str, int]:
        with self._explained("listed"):
            return {meta["path"]: meta["size"] for some in self._client.list(prefix or None) for meta in some}

    def places(self) -> list[str]:
        with self._explained("listed"):
            return sorted(self._client.list_with_delimiter()["common_prefixes"])

    def delete(self, keys: Iterable[str]) -> None:
        wanted = sorted(keys)
        with self._explained("written"):
            for start in range(0, len(wanted), _DELETED_AT_ONCE):
                self._client.delete(wanted[start : start + _DELETED_AT_ONCE])

    def _on_condition(self, key: str, data: bytes, mode: Any) -> Version:
        """Write on a condition, and find out by what is there now where the answer was lost or came twice."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        for attempt in range(_ATTEMPTS):
            try:
                result = self._client.put(key, data, mode=mode, use_multipart=False)
                return Version(result["e_tag"], result["version"])
            except (BaseError, OSError) as error:
                there = self.get(key)
                if there is not None and there.data == data:
                    return there.version
                is_refused = isinstance(error, AlreadyExistsError | PreconditionError | FileNotFoundError)
                if is_refused and (there is not None or mode != "create"):
                    raise Conflict(f"{self.url}/{key} was written by somebody else") from None
                if attempt == _ATTEMPTS - 1:
                    raise self._failed("written", error) from None
        raise AssertionError("the last attempt has raised")

    @property
    def _client(self) -> Any:
        return _opened(self.url)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            raise self._failed(what, error) from None

    def _failed(self, what: str, error: Exception) -> StoreFailed:
        return StoreFailed(f"{self.url} cannot be {what}: {_cause(str(error))}")


def _cause(text: str) -> str:
    """What a store has said, without how it was asked.

    >>> _cause("Error GET: 404: <Error><Code>NoSuchBucket</Code><Message>It does not exist</Message></Error>")
    'NoSuchBucket, It does not exist; make the bucket, or correct the URL'
    """
    text = re.sub(r"\s+", " ", text.split("\n\nDebug source:")[0])
    if _ROLE_ADDRESS in text:
        return "it has no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
    if (found := _REFUSAL.search(text)) is not None:
        cure = "; make the bucket, or correct the URL" if found.group(1) == "NoSuchBucket" else ""
        return f"{found.group(1)}, {found.group(2)}{cure}"
    return text[:400]


@cache
def _opened(url: str) -> Any:
    """What talks to a store; one for each URL and process."""
    try:
        from obstore.store import from_url
    except ImportError:
        raise InputError(
            f"{url} is in an object store, for which the package obstore is needed: pip install 'watersmeet[stores]'"
        ) from None
    client: ClientConfig = {"timeout": "30s", "connect_timeout": "5s"}
    if os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", "")).startswith("http://"):
        client["allow_http"] = True  # whoever names such an endpoint means it
    opening: Callable[..., Any] = from_url
    try:
        return opening(url, client_options=client, retry_config=_RETRY)
    except Exception as error:
        raise InputError(f"{url} cannot be used: {error}") from None
