"""Requests for another topology, in the checkpoint of a site: durable, and taken by the process that runs the site.

DIR/SITE/requests/ID.json     what is asked for, until it is part of the ledger or refused
                  ID.answer   why it was refused, or that there is nothing to do; read and removed by whoever asked
"""

import contextlib
import json
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from watersmeet.spark.durable import FLUSHED, sealed, unsealed

_REQUESTS = "requests"
_KEPT_S = 86_400  # how long an answer waits for whoever asked


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """A topology that somebody asks for."""

    id: str
    topology: str  # as `spark.definitions` writes it
    reason: str = ""


def new_request(topology: str, reason: str = "") -> TopologyRequest:
    """A request of its own."""
    return TopologyRequest(uuid.uuid4().hex[:12], topology, reason)


def put_request(checkpoint: Path, request: TopologyRequest) -> None:
    """Put a request into the checkpoint of a site."""
    place = checkpoint / _REQUESTS
    FLUSHED.make(str(place))
    FLUSHED.replace(place / f"{request.id}.json", sealed(json.dumps(asdict(request))))
    for old in place.glob("*.answer"):
        with contextlib.suppress(OSError):
            if old.stat().st_mtime < time.time() - _KEPT_S:
                old.unlink()


def requests_in(checkpoint: Path) -> list[TopologyRequest]:
    """The requests that wait in the checkpoint of a site, the oldest first; what is damaged is left alone."""
    found = []
    for path in (checkpoint / _REQUESTS).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(
                (path.stat().st_mtime_ns, TopologyRequest(**json.loads(unsealed(path.read_text(encoding="utf-8")))))
            )
    return [request for _, request in sorted(found, key=lambda one: (one[0], one[1].id))]


def answer_request(checkpoint: Path, request: str, text: str | None) -> None:
    """The request is done with: it is part of the ledger, or an answer says why not."""
    place = checkpoint / _REQUESTS
    if text is not None:
        FLUSHED.replace(place / f"{request}.answer", text)
    (place / f"{request}.json").unlink(missing_ok=True)


def take_answer(checkpoint: Path, request: str) -> str | None:
    """The answer to a request, once."""
    path = checkpoint / _REQUESTS / f"{request}.answer"
    try:
        text = path.read_text(encoding="utf-8")
        path.unlink()
    except FileNotFoundError:
        return None
    return text


def is_waiting(checkpoint: Path, request: str) -> bool:
    """Whether no process has taken a request yet."""
    return (checkpoint / _REQUESTS / f"{request}.json").exists()
