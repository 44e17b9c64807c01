"""Whether a run is alive and ready, over HTTP on the loopback address, for whoever starts and restarts it.

/livez    200 unless the run has failed, or one of its sites has said nothing for too long: start it again
/readyz   200 once all its sites hold their checkpoints and links and take rows, until the run ends

Both follow from the events of the run: a site gives a sign of life every two seconds, from the thread that watches its
links, while Spark answers it, and at the end of each micro-batch.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from watersmeet.errors import InputError
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import Event, MicroBatchCompleted, RunEnded, RunStarted, SiteStatus

LOOPBACK = "127.0.0.1"
SILENCE_S = 300.0  # a join may take long, and its thread says nothing meanwhile


class Health:
    """What the events of a run say about its health."""

    def __init__(self, silence_s: float = SILENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._silence_s = silence_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sites: dict[str, float | None] = {}  # when each was last heard of; None before it has begun
        self._started_at: float | None = None
        self._ended: str | None = None

    def read(self, at: float, event: Event) -> None:
        """Take note of an event."""
        with self._lock:
            match event:
                case RunStarted():
                    self._sites = dict.fromkeys(event.sites)
                    self._started_at, self._ended = self._clock(), None
                case SiteStatus() | MicroBatchCompleted():
                    self._sites[event.site] = self._clock()
                case RunEnded():
                    self._ended = event.reason

    @property
    def is_alive(self) -> bool:
        """Whether there is no reason to start it again."""
        with self._lock:
            if self._ended is not None:
                return self._ended != "failed"
            return self._started_at is None or all(silence <= self._silence_s for silence in self._silences().values())

    @property
    def is_ready(self) -> bool:
        """Whether all sites have begun and none has ended."""
        with self._lock:
            has_begun = self._started_at is not None and all(at is not None for at in self._sites.values())
            return has_begun and self._ended is None

    def report(self) -> dict[str, Any]:
        """What is known, for people."""
        with self._lock:
            state = self._ended or ("starting" if self._started_at is None else "running")
            silences = {site: round(seconds, 1) for site, seconds in self._silences().items()}
            return {"run": state, "seconds_since_last_heard_of": silences}

    def _silences(self) -> dict[str, float]:
        now = self._clock()
        began = self._started_at or now
        return {site: now - (began if at is None else at) for site, at in sorted(self._sites.items())}


@dataclass(frozen=True, slots=True)
class HealthServer:
    """A running server: where it listens, and how it is stopped."""

    port: int
    stop: Callable[[], None]

    @property
    def url(self) -> str:
        """Where it is asked, without the path."""
        return f"http://{LOOPBACK}:{self.port}"


def serve_health(bus: EventBus, port: int, health: Health | None = None) -> HealthServer:
    """Serve the health of a run on the loopback address; port 0 picks a free one."""
    known = health or Health()

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            answers = {"/livez": known.is_alive, "/readyz": known.is_ready}
            is_good = answers.get(self.path)
            body = json.dumps({"ok": is_good, **known.report()}).encode() if is_good is not None else b"{}"
            self.send_response(404 if is_good is None else 200 if is_good else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Nothing: it is asked every few seconds."""

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise InputError(f"health port {port} cannot be opened: {error.strerror or error}; give another one") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    unsubscribe = bus.subscribe(known.read, replay=True)

    def stop() -> None:
        unsubscribe()
        server.shutdown()
        server.server_close()
        thread.join()

    return HealthServer(int(server.server_address[1]), stop)
