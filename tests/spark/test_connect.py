"""Sites whose Spark is a server of Spark Connect: the same answers, wherever tasks run and whatever is killed."""

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import duckdb
import pytest
from connect_server import ConnectServer
from processes import CommandProcess
from scenes import PATIENCE_S, Scene, make_batches, wait_for
from spark.recovery import APART, PLAN, make_scene

from watersmeet.errors import CheckpointMismatch, InputError
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.connect.batches import ClientBatches
from watersmeet.spark.connect.offered import OfferedFrame, offer_to
from watersmeet.spark.connect.session import connect
from watersmeet.spark.durable import UNFLUSHED

SQL = "SELECT a.k AS k, a.id + b.id AS ids FROM a [RANGE 20 SECONDS], b [RANGE 20 SECONDS] WHERE a.k = b.k"


def test_micro_batches_of_a_client_are_numbered_and_end_with_what_was_raised() -> None:
    seen: list[int] = []

    def run_batch(frame: object, batch: int) -> None:
        seen.append(batch)
        if batch == 9:
            raise ValueError("enough")

    batches = ClientBatches(run_batch, 7, 0.0, "q")
    with pytest.raises(ValueError, match="enough"):
        batches.awaitTermination(PATIENCE_S)
    assert (seen, batches.isActive, str(batches.exception())) == ([7, 8, 9], False, "enough")
    endless = ClientBatches(lambda frame, batch: None, 0, 0.01, "q")
    assert endless.isActive and endless.awaitTermination(0.05) is False
    endless.stop()
    assert not endless.isActive and endless.exception() is None


class Frame:
    """A micro-batch on the server, which fails the second time."""

    times = 0

    def collect(self) -> list[tuple[str]]:
        self.times += 1
        if self.times == 2:
            raise ValueError("bad file")
        return [(f"report {self.times}",)]


def test_a_server_reads_a_micro_batch_as_often_as_the_client_asks(tmp_path: Path) -> None:
    server = threading.Thread(target=offer_to(str(tmp_path)), args=(Frame(), 3), daemon=True)
    server.start()
    wait_for((tmp_path / "3.offer").exists, "nothing is offered")
    frame = OfferedFrame(tmp_path, 3, lambda: None)
    assert frame.collect() == [("report 1",)]
    with pytest.raises(Exception, match="bad file"):
        frame.collect()
    assert frame.collect() == [("report 3",)]
    (tmp_path / "3.done").touch()
    server.join(PATIENCE_S)
    assert not server.is_alive()


def test_a_server_lets_go_when_the_client_has_ended(tmp_path: Path) -> None:
    (tmp_path / "end").touch()
    with pytest.raises(RuntimeError, match="has ended"):
        offer_to(str(tmp_path))(Frame(), 0)


def test_a_checkpoint_goes_on_where_it_was_made(tmp_path: Path) -> None:
    identity = {"queries": {}, "format": 0}
    held = Checkpoint(tmp_path / "c", identity, UNFLUSHED)
    held.number_batches(by_client=True)
    held.commit(SiteLedger(ingested_batch=4))
    held.close()
    again = Checkpoint(tmp_path / "c", identity, UNFLUSHED)  # Spark has no log, and none is missed
    again.number_batches(by_client=True)
    with pytest.raises(CheckpointMismatch, match=r"was made over Spark Connect.*go on with --remote"):
        again.number_batches(by_client=False)
    again.close()


def test_addresses_are_checked_and_tokens_not_shown() -> None:
    with pytest.raises(InputError, match=r"--remote spark://host:7077: .* begins with sc://") as refused:
        connect("spark://host:7077/;token=secret")
    assert "secret" not in str(refused.value)


def check_all(running: Iterable[CommandProcess]) -> None:
    for one in running:
        one.check()


@pytest.mark.soak
def test_two_sites_at_two_servers_of_which_one_is_killed(tmp_path: Path) -> None:
    """A client, then a server, is killed under way; expressions are evaluated on the servers."""
    scene = make_scene(
        tmp_path, ["plain", "residual"], batches=10, rows=3000, seed=3, homes=APART, site="nyc", plan=PLAN
    )
    with ExitStack() as all_of_it:
        servers = {site: all_of_it.enter_context(ConnectServer(tmp_path, site)) for site in ("ams", "nyc")}

        def site(name: str, *more: str) -> CommandProcess:
            words = ["site", name, str(scene.topology_path), "--quiet", "--remote", servers[name].url]
            words += ["--checkpoint", str(scene.checkpoint), *more]
            return all_of_it.enter_context(CommandProcess(words, tmp_path / f"{name}.txt"))

        def await_progress(*running: CommandProcess) -> None:
            before = scene.ledger("ams").ingested_batch
            wait_for(
                lambda: scene.ledger("ams").ingested_batch > before or scene.is_at_rest(),
                "no micro-batch is ingested",
                lambda: check_all(running),
                scene.progress,
            )

        ams, nyc = site("ams"), site("nyc", "--health-port", "0")
        await_progress(ams, nyc)
        ams.kill("group")
        ams = site("ams")
        await_progress(ams, nyc)
        servers["nyc"].kill()
        servers["nyc"].start()  # it knows nothing of the sessions before
        with pytest.raises(AssertionError, match=r"Spark Connect server .* start the run again to resume it"):
            nyc.finish()
        nyc = site("nyc", "--health-port", "0")
        wait_for(scene.is_at_rest, "it does not come to its end", lambda: check_all((ams, nyc)), scene.progress)
        address = next(line.split()[3] for line in reversed(nyc.told) if "health at" in line)
        with urllib.request.urlopen(address.replace("/livez", "/readyz")) as answer:
            assert json.load(answer)["ok"] is True
        for one in (ams, nyc):
            one.stop()
    scene.check()


_SCRIPT = """
import sys
import watersmeet as wm
from pyspark.sql import SparkSession

url, place, sql = sys.argv[1:]
spark = SparkSession.builder.remote(url).create()

def stream(name):
    rows = spark.readStream.schema("k long, m int, s string, id long, v double, ts timestamp")
    return rows.option("maxFilesPerTrigger", 2).parquet(f"{place}/data/{name}").withWatermark("ts", "1 minute")

joined = wm.sql(spark, sql, a=stream("a"), b=stream("b"))
writer = joined.writeStream.format("parquet").option("checkpointLocation", f"{place}/join").trigger(availableNow=True)
writer.start(f"{place}/answers").awaitTermination()
"""


@pytest.mark.soak
def test_frames_of_a_remote_session_are_joined(tmp_path: Path) -> None:
    """Twice: what is there is answered once, and a second start finds nothing new."""
    scene = Scene(tmp_path, {n: make_batches(i, 4, 2000, keys=500) for i, n in enumerate("ab")}, {"q": SQL}).write()
    with ConnectServer(tmp_path, "server") as server:
        for _ in range(2):
            subprocess.run([sys.executable, "-c", _SCRIPT, server.url, str(tmp_path), SQL], check=True, timeout=900)
    rows = {name: f"read_parquet('{tmp_path}/data/{name}/*.parquet')" for name in "ab"}
    expected = f"""SELECT a.k, a.id + b.id AS ids FROM {rows["a"]} a JOIN {rows["b"]} b ON a.k = b.k
        AND abs(epoch_us(a.ts) - epoch_us(b.ts)) <= 20000000"""
    found = f"SELECT k, ids FROM read_parquet('{tmp_path}/answers/*.parquet')"
    assert scene.queries
    for one, other in ((expected, found), (found, expected)):
        with duckdb.connect() as db:
            assert db.execute(f"SELECT count(*) FROM ({one} EXCEPT ALL {other})").fetchall() == [(0,)]
