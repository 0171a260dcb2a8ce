# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the links within a built site: `python scripts/links.py docs/_build/html`.

Sphinx's own check asks servers, and passes over the anchors of raw HTML and of stored outputs. This
one reads each page as it is served.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors and the links of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects `id`, `name` of anchors, `href` and `src`."""
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src"):
                self.links.append(value or "")


def broken(folder: Path) -> list[str]:
    """Returns `PAGE: LINK` for each link to a file or an anchor that the site lacks."""
    files = sorted(folder.rglob("*.html"))
    pages = {file.resolve(): Page(file.read_text(encoding="utf-8")) for file in files}
    wrong = []
    for file, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = unquote(parts.path)
            target = (file.parent / path).resolve() if path else file
            known = pages.get(target)
            anchor = unquote(parts.fragment)
            missing = known is not None and anchor and anchor not in known.anchors
            if not target.exists() or missing:
                wrong.append(f"{file.relative_to(folder.resolve())}: {link}")
    return wrong


def main() -> int:
    """Prints the broken links; the exit status is 1 if there is one."""
    wrong = broken(Path(sys.argv[1]))
    print("\n".join(wrong) or "every link within the site leads somewhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
