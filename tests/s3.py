"""An S3 server on loopback, and a proxy before it that loses, delays, refuses and repeats answers.

The server is `versitygw` (https://github.com/versity/versitygw, a gateway to a directory) where that is on PATH: `go
install github.com/versity/versitygw/cmd/versitygw@latest`. Otherwise it is moto's, of the `dev` extra.
"""

import contextlib
import http.client
import ipaddress
import os
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from free_ports import free_port
from scenes import wait_for

_KEY, _SECRET, _BUCKET = "watersmeet", "only-for-tests-0", "streams"


def environment(endpoint: str) -> dict[str, str]:
    """What a process needs to reach a server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
    }


@contextlib.contextmanager
def serve_s3(directory: Path) -> Iterator[str]:
    """Run a server with an empty bucket; its endpoint."""
    command = shutil.which("versitygw")
    with _versitygw(command, directory) if command else _moto() as endpoint:
        yield endpoint


@contextlib.contextmanager
def _versitygw(command: str, directory: Path) -> Iterator[str]:
    (directory / _BUCKET).mkdir(parents=True)
    port = free_port()
    access = {**os.environ, "ROOT_ACCESS_KEY": _KEY, "ROOT_SECRET_KEY": _SECRET}
    arguments = [command, "--quiet", "--keep-alive", "--port", f"127.0.0.1:{port}", "posix", str(directory)]
    process = subprocess.Popen(arguments, env=access, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: is_listening(port), "versitygw does not listen")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _moto() -> Iterator[str]:
    server_module = pytest.importorskip(
        "moto.server", reason="no S3 server: put versitygw on PATH, or install moto (pip install -e '.[dev]')"
    )
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = _one_at_a_time(server._server.app)
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{_BUCKET}", method="PUT")).close()
        yield endpoint
    finally:
        server.stop()


def _one_at_a_time(app: Callable[..., Any]) -> Callable[..., Any]:
    """An application whose conditional writes are one step: moto looks at a condition first and writes afterwards."""
    lock = threading.Lock()

    def locked(environ: Any, start_response: Any) -> list[bytes]:
        with lock:
            return list(app(environ, start_response))

    return locked


def new_url() -> str:
    """A URL of the bucket below which nothing is."""
    return f"s3://{_BUCKET}/{uuid.uuid4().hex[:12]}"


def is_listening(port: int) -> bool:
    """Whether somebody accepts connections at a port of loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Faults:
    """A proxy before a server; `decide` says for each request what becomes of it.

    It is called with the method and the path and returns one of: "pass"; "refuse" (503, nothing is passed on); "lose"
    (it is passed on, and the connection closed without an answer); "stale" (a GET gets the first answer ever).
    """

    def __init__(self, endpoint: str, decide: Callable[[str, str], str], certificate: Path | None = None) -> None:
        self.decide = decide
        self.seen: list[tuple[str, str, str]] = []  # method, path and what became of it
        self._answers: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}  # the first of each path
        upstream = urlsplit(endpoint).netloc
        faults = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                what = faults.decide(self.command, self.path)
                faults.seen.append((self.command, self.path, what))
                if what == "refuse":
                    self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
                    return
                connection = http.client.HTTPConnection(upstream, timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                answer = connection.getresponse()
                found = (answer.status, answer.getheaders(), answer.read())
                connection.close()
                if what == "lose":
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if self.command == "GET" and answer.status == 200:
                    first = faults._answers.setdefault(self.path, found)
                    found = first if what == "stale" else found
                self._answer(*found)

            def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response_only(status)
                kept = [(name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP]
                length = {name.lower(): value for name, value in kept}.get("content-length")
                for name, value in kept:
                    self.send_header(name, value)
                if length is None:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                return

        for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
            setattr(Handler, f"do_{method}", Handler._pass_on)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if certificate is not None:  # it speaks TLS with its clients, and without to the server
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.endpoint = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Faults":
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def write_certificates(directory: Path) -> tuple[Path, Path]:
    """An authority of its own, and a key with its certificate for loopback, for an hour: two files."""
    authority, certificate = directory / "authority.pem", directory / "loopback.pem"
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("tests", "127.0.0.1")]
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in names]
    now, texts = datetime.now(UTC), []
    for number, (name, key) in enumerate(zip(names, keys, strict=True)):
        made = x509.CertificateBuilder().subject_name(name).issuer_name(names[0]).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        made = made.add_extension(x509.BasicConstraints(ca=number == 0, path_length=None), critical=True)
        if number:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            made = made.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        texts.append(made.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    authority.write_bytes(texts[0])
    certificate.write_bytes(texts[1] + keys[1].private_bytes(serialization.Encoding.PEM, form, secret))
    return authority, certificate


_HOP_BY_HOP = ("connection", "transfer-encoding", "keep-alive")
