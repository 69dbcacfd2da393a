"""Open every page of the built documentation in a headless browser.

usage: python scripts/check_site.py [SITE]

A page fails if the browser reports an error, if it requests anything from another host, if a link
or an anchor leads nowhere, if a picture does not load, or if it is wider than the screen of a
phone. The browser is the chromium or Chrome on the path, otherwise the one installed by playwright
(``playwright install chromium``).
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from playwright.sync_api import Error, Page, sync_playwright

PREFIX = "/headrace/"  # the path of site_url, which the 404 page links to
PHONE = {"width": 390, "height": 844}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LINKS = "Array.from(document.querySelectorAll('a[href]'), link => link.href)"
IDS = "Array.from(document.querySelectorAll('[id]'), element => element.id)"
BROKEN_PICTURES = """Array.from(document.images)
    .filter(picture => picture.complete && picture.naturalWidth === 0)
    .map(picture => picture.src)"""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder below the prefix, without a log."""

    def translate_path(self, path: str) -> str:
        return super().translate_path("/" + path.removeprefix(PREFIX).lstrip("/"))

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@dataclass
class Report:
    """The results for all pages."""

    faults: list[str] = field(default_factory=list)
    links: dict[str, set[str]] = field(default_factory=dict)
    ids: dict[str, set[str]] = field(default_factory=dict)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on the loopback address, and yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    finally:
        server.shutdown()


def visit(page: Page, url: str, host: str, report: Report) -> None:
    """Open a page on a phone, and record its faults, links and anchors."""
    faults: list[str] = []
    page.on("console", lambda message: _note_console(message.type, message.text, faults))
    page.on("pageerror", lambda error: faults.append(f"script: {error}"))
    page.on("requestfailed", lambda request: faults.append(f"failed: {request.url}"))
    page.on("request", lambda request: _note_request(request.url, host, faults))
    page.goto(url, wait_until="load")
    page.wait_for_function("document.querySelector('[data-md-component=search-query]') !== null")
    width = page.evaluate("document.documentElement.scrollWidth")
    if width > PHONE["width"]:
        faults.append(f"{width} pixels wide on a phone of {PHONE['width']}")
    faults += [f"picture: {src}" for src in page.evaluate(BROKEN_PICTURES)]
    report.links[url] = set(page.evaluate(LINKS))
    report.ids[url] = set(page.evaluate(IDS))
    report.faults += [f"{url.removeprefix(host)}: {fault}" for fault in faults]


def _note_console(kind: str, text: str, faults: list[str]) -> None:
    if kind in ("error", "warning"):
        faults.append(f"console: {text}")


def _note_request(url: str, host: str, faults: list[str]) -> None:
    if not url.startswith((host, "data:", "blob:")):
        faults.append(f"asks another host: {url}")


def check_links(report: Report, host: str, site: Path) -> None:
    """Record the links within the site that lead nowhere."""
    for url, links in report.links.items():
        for link in sorted(links):
            if not link.startswith(host):
                continue
            target, anchor = urldefrag(link)
            path = site / unquote(urlsplit(target).path).removeprefix(PREFIX)
            where = url.removeprefix(host)
            if not (path / "index.html" if path.is_dir() else path).is_file():
                report.faults.append(f"{where}: dead link {link.removeprefix(host)}")
            elif anchor and target in report.ids and unquote(anchor) not in report.ids[target]:
                report.faults.append(f"{where}: no anchor {link.removeprefix(host)}")


def search(page: Page, host: str, report: Report) -> None:
    """Search for a word, and record a fault if nothing is found."""
    page.goto(host)
    try:
        page.locator("[data-md-component=search-query]").click()
        page.keyboard.type("shuffle")
        page.wait_for_selector(".md-search-result__item", timeout=10_000)
    except Error as error:
        report.faults.append(f"search finds nothing: {error}")


def main(site: Path) -> int:
    """Check all pages; return 1 if there are faults."""
    report = Report()
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    pages = sorted(file.relative_to(site) for file in site.rglob("*.html"))
    with served(site) as host, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for file in pages:
            name = str(file).removesuffix("index.html")
            page = browser.new_page(viewport=PHONE)
            visit(page, host + name, host, report)
            page.close()
        page = browser.new_page()
        search(page, host, report)
        browser.close()
        check_links(report, host, site)
    for fault in report.faults:
        print(fault)
    links = sum(map(len, report.links.values()))
    print(f"{len(pages)} pages, {links} links, {len(report.faults)} faults")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "site")))
