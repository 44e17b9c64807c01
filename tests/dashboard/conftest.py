"""A recorded run, a server of its page, and a real browser."""

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scenes import PATIENCE_S

from watersmeet.dashboard.server import Server
from watersmeet.dashboard.watcher import Watcher

CHROMIUM = Path(os.environ.get("WATERSMEET_CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# A run that record.py made, its events as it kept them.
RECORDED = Path(__file__).parent / "recorded.jsonl.gz"

Lines = list[dict[str, Any]]
Serve = Callable[..., Server]


@pytest.fixture(scope="session")
def recorded() -> Lines:
    """The events of a run of four sites on Spark whose plan changed while it ran."""
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture
def serve(serve_watcher: Serve) -> Serve:
    """Serve files or checkpoints in a thread."""

    def begin(*paths: Path, host: str = "127.0.0.1", silent_after_s: float = 8.0) -> Server:
        return serve_watcher(Watcher(paths, silent_after_s=silent_after_s), host)

    return begin


@pytest.fixture
def serve_watcher() -> Iterator[Serve]:
    """Serve in a thread what something follows."""
    running: list[tuple[Server, threading.Thread]] = []

    def begin(watcher: Watcher, host: str = "127.0.0.1") -> Server:
        server = Server(watcher, host)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((server, thread))
        return server

    yield begin
    for server, thread in running:
        server.stop()
        thread.join(PATIENCE_S)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a window."""
    if not CHROMIUM.exists():
        pytest.skip("no Chromium: `apt-get install chromium`, or name one in WATERSMEET_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium, most_ms = str(CHROMIUM), PATIENCE_S * 1_000
        opened = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS), timeout=most_ms)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a panel of a page, and fail for anything that goes wrong in it or leaves the machine."""
    contexts, wrong = [], []

    def begin(url: str, panel: str = "map", *, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE_S * 1_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        origin = url.split("?")[0]
        page.on("request", lambda asked: None if asked.url.startswith(origin) else wrong.append(asked.url))
        page.goto(f"{url}#{panel}")
        page.wait_for_selector("body[data-ready=true]")
        return page

    yield begin
    for context in contexts:
        context.close()
    assert not wrong, wrong
