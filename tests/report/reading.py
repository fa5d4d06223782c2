"""Look at a page as a browser does: elements, attributes and visible text."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser


class Page(HTMLParser):
    """What is in a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []  # element, attribute, value
        self._text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag in ("style", "script"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open:
            self._text.append(data)

    @property
    def text(self) -> str:
        """Visible text with single spaces."""
        return " ".join(" ".join(self._text).split())

    @property
    def ids(self) -> list[str]:
        """Every id, as often as it occurs."""
        return [value for _, name, value in self.attributes if name == "id"]

    def loads(self) -> list[str]:
        """Everything that the page would fetch."""
        fetching = ("src", "href", "xlink:href", "srcset", "data", "action", "poster")
        return [
            value
            for _, name, value in self.attributes
            if name in fetching and not value.startswith("#")
        ]
