"""The web server of the page: on the loopback address, or elsewhere for whoever has the token."""

import asyncio
import hmac
import ipaddress
import json
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from watersmeet.dashboard import view
from watersmeet.dashboard.peers import read_trace
from watersmeet.dashboard.watcher import Watcher
from watersmeet.errors import InputError

STATIC = Path(__file__).parent / "static"
_COOKIE = "watersmeet_token"
_MOST_POINTS = 2_000
_TICK_S = 1.0
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def application(watcher: Watcher, *, hosts: Sequence[str], token: str | None) -> ASGIApp:
    """The page and what it asks for; only for requests to one of the hosts, with the token if there is one."""

    async def page(request: Request) -> Response:
        return Response((STATIC / "index.html").read_bytes(), media_type="text/html")

    async def now(request: Request) -> Response:
        return JSONResponse(_now(watcher))

    async def history(request: Request) -> Response:
        try:
            start, end = (float(request.query_params[name]) for name in ("from", "to"))
            points = int(request.query_params.get("points", 300))
        except (KeyError, ValueError):
            return PlainTextResponse("from and to are seconds since 1970, points is a number", 400)
        if not (start < end and 1 <= points <= _MOST_POINTS):
            return PlainTextResponse(f"from must be before to, and points from 1 to {_MOST_POINTS}", 400)
        kinds = frozenset(request.query_params["kinds"].split(",")) if "kinds" in request.query_params else None
        return JSONResponse(watcher.look(lambda model, now: model.history(start, end, points, kinds)))

    async def timeline(request: Request) -> Response:
        return JSONResponse(watcher.look(lambda model, now: view.timeline(model)))

    async def answers(request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not after.isdecimal():
            return PlainTextResponse("after is the number of a sample", 400)
        watcher.watch()
        return JSONResponse(watcher.look(lambda model, now: view.answers(model, int(after))))

    async def peers(request: Request) -> Response:
        return JSONResponse([await asyncio.to_thread(read_trace, path) for path in watcher.traces])

    async def events(request: Request) -> Response:
        return StreamingResponse(_ticks(watcher), media_type="text/event-stream")

    routes = [
        Route("/", page),
        Route("/api/now", now),
        Route("/api/history", history),
        Route("/api/timeline", timeline),
        Route("/api/answers", answers),
        Route("/api/peers", peers),
        Route("/api/events", events),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return _Gate(Starlette(routes=routes), hosts, token)


def _now(watcher: Watcher) -> dict[str, Any]:
    """The run as it is now; a trace of peers by itself is none."""
    data: dict[str, Any] = watcher.look(view.snapshot)
    return data | {"state": "trace"} if watcher.traces and data["state"] == "waiting" else data


async def _ticks(watcher: Watcher) -> AsyncIterator[str]:
    """A server-sent event a second: the run as it is now."""
    while True:
        yield f"data: {json.dumps(_now(watcher), allow_nan=False)}\n\n"
        await asyncio.sleep(_TICK_S)


class _Gate:
    """Answers only requests that are meant for this server, by those who may; adds headers that keep the page tight.

    A name in `Host` that is none of ours is refused: otherwise any web page could have its own name point here.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], token: str | None) -> None:
        self._app, self._hosts, self._token = app, frozenset(hosts), token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(request)
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if self._hosts and (request.url.hostname or "") not in self._hosts:
            return PlainTextResponse("this server has another name", 421)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("nothing can be changed here", 405)
        if self._token is None:
            return None
        given = request.query_params.get("token")
        if given is not None and hmac.compare_digest(given.encode(), self._token.encode()):
            response = RedirectResponse(request.url.path, 303)
            response.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
            return response
        if hmac.compare_digest(request.cookies.get(_COOKIE, "").encode(), self._token.encode()):
            return None
        return PlainTextResponse("open the address with ?token=... that was printed when the dashboard started", 401)


class _Uvicorn(uvicorn.Server):
    async def main_loop(self) -> None:
        """Look seldom whether it is to end: by itself uvicorn does so ten times a second."""
        while not await self.on_tick(0):
            await asyncio.sleep(_TICK_S / 2)


class Server:
    """A server that is bound and can be run: `url` says where."""

    def __init__(self, watcher: Watcher, host: str = "127.0.0.1", port: int = 0) -> None:
        self._watcher = watcher
        self.ended = threading.Event()
        token = None if _is_loopback(host) else secrets.token_urlsafe(24)
        hosts = ("127.0.0.1", "localhost", "::1", "[::1]") if token is None else ()
        self._socket = _bound(host, port)
        self.port = int(self._socket.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/" + ("" if token is None else f"?token={token}")
        app = application(watcher, hosts=hosts, token=token)
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1, server_header=False
        )
        self._server = _Uvicorn(config)

    def run(self) -> None:
        """Serve until a signal, or until `stop`."""
        self._watcher.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._watcher.stop()
            self.ended.set()

    def stop(self) -> None:
        """End soon: `ended` says when everything is stored."""
        self._server.should_exit = True


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bound(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(found[0], socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(found[4])
    except OSError as error:
        raise InputError(
            f"{host}:{port} cannot be opened: {error.strerror or error}; give another --host or --port"
        ) from error
    bound.listen(64)
    return bound
