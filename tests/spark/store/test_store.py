"""What is asked of an object store, from an S3 server, also where answers are lost, refused, slow or old."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from s3 import Faults, new_url, write_certificates
from scenes import PATIENCE_S, wait_for

from watersmeet.errors import CheckpointMismatch, InputError
from watersmeet.spark.store.lease import LEASE, Lease
from watersmeet.spark.store.object_store import ObjectStore, open_store
from watersmeet.spark.store.protocol import Conflict, StoreFailed, Version, check_conditions


def test_objects_are_created_replaced_listed_and_deleted(s3_url: str, tmp_path: Path) -> None:
    store = open_store(s3_url)
    first = store.create("a/one", b"1")
    second = store.replace("a/one", b"2", first)
    with pytest.raises(Conflict):
        store.create("a/one", b"3")
    with pytest.raises(Conflict):
        store.replace("a/one", b"4", first)
    with pytest.raises(Conflict):
        store.replace("a/none", b"5", first)
    found = store.get("a/one")
    assert found is not None and (found.data, found.version) == (b"2", second)
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    store.put("b/file", tmp_path / "file")
    assert store.download("b/file", tmp_path / "copy") and (tmp_path / "copy").read_bytes() == b"x" * 100_000
    assert not store.download("b/none", tmp_path / "none")
    assert store.sizes() == {"a/one": 1, "b/file": 100_000} and store.places() == ["a", "b"]
    assert store.below("b").sizes() == {"file": 100_000} and store.sizes("b/") == {"b/file": 100_000}
    store.delete(["a/one", "b/file", "c"])
    assert store.sizes() == {} and store.get("a/one") is None


def test_of_many_writers_one_creates_and_one_replaces(s3_url: str) -> None:
    store, won = open_store(s3_url), []

    def write(number: int, version: Version | None) -> None:
        data = f"{number} after {version}".encode()
        try:
            won.append(store.create("x", data) if version is None else store.replace("x", data, version))
        except Conflict:
            return

    def race(version: Version | None) -> Version:
        won.clear()
        threads = [threading.Thread(target=write, args=(number, version)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        return won[0]

    version = None
    for _ in range(5):
        version = race(version)


def test_a_write_whose_answer_is_lost_counts_once(faults: Faults) -> None:
    lost = iter(["lose", "pass", "lose"])  # the second is the library's own repetition

    def decide(method: str, path: str) -> str:
        return next(lost, "pass") if method == "PUT" else "pass"

    faults.decide = decide
    store = open_store(new_url())
    version = store.create("x", b"1")
    version = store.replace("x", b"2", version)
    found = store.get("x")
    assert found is not None and (found.data, found.version) == (b"2", version)
    assert [what for _, _, what in faults.seen].count("lose") == 2


def test_a_store_that_is_busy_is_asked_again(faults: Faults) -> None:
    answers = iter(["refuse", "refuse"])
    faults.decide = lambda method, path: next(answers, "pass")
    store = open_store(new_url())
    store.put("x", b"1")
    assert store.sizes() == {"x": 1}


def test_a_store_that_ignores_conditions_is_refused(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(s3_url)
    check_conditions(store)
    assert store.sizes() == {}

    def ignore(self: ObjectStore, key: str, data: bytes, version: Version | None = None) -> Version:
        self.put(key, data)
        found = self.get(key)
        assert found is not None
        return found.version

    for name, what in (("create", "If-None-Match"), ("replace", "If-Match")):
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, name, ignore)
            with pytest.raises(StoreFailed, match=what):
                check_conditions(store)
        assert store.sizes() == {}


@pytest.mark.parametrize(
    ("url", "why"),
    [("hdfs://host/x", "HDFS replaces no file on a condition, .*; "), ("http://host/x", ""), ("ftp://host/x", "")],
)
def test_places_that_are_no_stores_are_refused(url: str, why: str) -> None:
    with pytest.raises(InputError, match=f"^{url} is in no store that commits can be made in; {why}give a directory, "):
        open_store(url)


def test_credentials_that_are_missing_are_named() -> None:
    error = OSError("Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token")
    said = str(ObjectStore("s3://b/c")._failed("read", error))
    assert said.startswith("s3://b/c cannot be read: it has no credentials: set AWS_ACCESS_KEY_ID and ")


# Leases -----------------------------------------------------------------------------------------------------------


def test_a_second_holder_is_refused_and_the_next_one_goes_on(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.spark.store.lease._RENEWALS", 5 * PATIENCE_S)  # so five times a second
    store = open_store(s3_url)
    first = Lease(store, "here", lasts_s=PATIENCE_S)
    with pytest.raises(CheckpointMismatch, match=r"in use by another run \(process \d+ on "):
        Lease(store, "there", lasts_s=PATIENCE_S)
    first.release()
    second = Lease(store, "there", lasts_s=PATIENCE_S)
    assert (first.stamp[:2], second.stamp[:2]) == ("1-", "2-")
    second.release()


def test_a_lease_that_is_not_renewed_is_taken_over(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(s3_url)
    monkeypatch.setattr(Lease, "_renew", lambda self: None)
    dead = Lease(store, "here", lasts_s=1.0)
    began = time.monotonic()
    second = Lease(store, "there", lasts_s=1.0)
    assert time.monotonic() - began >= 1.0, "it was waited for as long as the lease says"
    before = store.get(LEASE)
    dead.release()  # it comes back to life, and does not know
    assert store.get(LEASE) == before
    second.release()


def test_whoever_has_the_lock_of_the_last_holder_need_not_wait(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(s3_url)
    monkeypatch.setattr(Lease, "_renew", lambda self: None)
    Lease(store, "here", lasts_s=600.0)
    Lease(store, "here", lasts_s=600.0).release()


def test_a_lease_is_kept_while_the_store_fails_for_a_while(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.spark.store.object_store._RETRY", {"max_retries": 0})
    store = open_store(new_url())
    lease = Lease(store, "here", lasts_s=0.2)
    faults.decide = lambda method, path: "refuse"
    seen = len(faults.seen)
    wait_for(lambda: len(faults.seen) > seen + 6, "the lease is not renewed")
    faults.decide = lambda method, path: "pass"
    lease.release()
    stored = store.get(LEASE)
    assert stored is not None
    held = json.loads(stored.data)
    assert held["is_over"] and held["epoch"] == 1


_AT_TLS = """
import sys
from datetime import timedelta
from watersmeet.spark.store import object_store
from watersmeet.spark.store.protocol import StoreFailed, check_conditions

object_store._RETRY.update(max_retries=0, retry_timeout=timedelta(seconds=5))
store = object_store.open_store(sys.argv[1])
try:
    check_conditions(store)
    store.put("a", b"over TLS")
    print(store.get("a").data.decode())
except StoreFailed as error:
    print("refused:", error)
"""


def test_a_store_is_reached_over_tls_if_its_certificate_is_trusted(s3_url: str, tmp_path: Path) -> None:
    authority, certificate = write_certificates(tmp_path)
    with Faults(os.environ["AWS_ENDPOINT_URL"], lambda method, path: "pass", certificate) as proxy:
        settings = {**os.environ, "AWS_ENDPOINT_URL": proxy.endpoint}

        def told(**trust: str) -> str:
            command = [sys.executable, "-c", _AT_TLS, s3_url]
            asked = subprocess.run(command, env={**settings, **trust}, capture_output=True, text=True, check=True)
            return asked.stdout.strip()

        assert told(SSL_CERT_FILE=str(authority)) == "over TLS"
        seen = len(proxy.seen)
        assert told().startswith("refused: ")
        assert len(proxy.seen) == seen, "nothing is sent to a server that cannot show who it is"
