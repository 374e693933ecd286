"""Check the links of a built site, without a network: ``python docs/links.py site``.

Pages, files and anchors must be there, and nothing that a page loads may come from elsewhere.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

#: Tags that load what they name, and the attribute that names it.
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
#: A page of no folder: its links are to the root of whatever server shows it.
NOT_FOUND = "404.html"


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one tag."""
        given = {name: value for name, value in attrs if value is not None}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if LOADED.get(tag) in given:
            self.loads.add(given[LOADED[tag]])
        elif tag == "a" and "href" in given:
            self.links.add(given["href"])


def problems(site: Path) -> list[str]:
    """Sentences, one for each link that leads nowhere."""
    site = site.resolve()
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site} holds no pages"]
    found = []
    for path, page in pages.items():
        if path.name == NOT_FOUND:
            continue
        name = path.relative_to(site)
        outside = [url for url in page.loads if urlsplit(url).netloc]
        found += [f"{name} loads {url} from elsewhere" for url in sorted(outside)]
        for url in sorted(page.links | page.loads):
            if not urlsplit(url).netloc and (why := _wrong(url, path, pages)):
                found.append(f"{name} links to {url}: {why}")
    return found


def _wrong(url: str, path: Path, pages: dict[Path, Page]) -> str | None:
    """Why a link within the site leads nowhere; None if it does not."""
    place, anchor = urldefrag(url)
    parts = urlsplit(place)
    if parts.scheme:
        return None if parts.scheme in ("mailto", "data") else f"unknown scheme {parts.scheme}"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such file"
    if target in pages and unquote(anchor) not in pages[target].anchors:
        return "no such anchor"
    return None


if __name__ == "__main__":
    sys.exit("\n".join(problems(Path(sys.argv[1]))) or None)
