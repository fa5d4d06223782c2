"""The pages of the project, and the pieces that tests hold to the truth: commands, links, YAML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "slurm/**/*.md", "examples/**/*.md", "benchmarks/*.md")
    for page in ROOT.glob(pattern)
)

_FENCE = re.compile(r"^(```+|~~~+)\s*(\w*)\s*$")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A block of code; indented blocks have no language."""

    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """One command that a page asks its reader to type."""

    line: int
    words: tuple[str, ...]


def name_of(page: Path) -> str:
    """A page's name in test ids and messages."""
    return str(page.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    """Fenced and indented blocks of code."""
    found: list[Block] = []
    fence, language, first = "", "", 0
    gathered: list[str] = []
    previous_blank = True
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line.strip())
        if fence:
            if line.strip() == fence:
                found.append(Block(first, language, "\n".join(gathered)))
                fence, gathered = "", []
            else:
                gathered.append(line)
        elif mark:
            fence, language, first = mark[1], mark[2], number + 1
        elif line.startswith("    ") and (previous_blank or gathered):
            first = first if gathered else number
            gathered.append(line[4:])
        elif gathered and line.strip():
            found.append(Block(first, "", "\n".join(gathered)))
            gathered = []
        previous_blank = not line.strip()
    if gathered:
        found.append(Block(first, "", "\n".join(gathered)))
    return found


def prose(text: str) -> str:
    """The page without its blocks, so that links in code are not taken for links."""
    kept, fence = [], ""
    for line in text.splitlines():
        mark = _FENCE.match(line.strip())
        if fence:
            fence = "" if line.strip() == fence else fence
            line = ""
        elif mark:
            fence, line = mark[1], ""
        kept.append("" if line.startswith("    ") else line)
    return "\n".join(kept)


def inline_code(text: str) -> Iterator[tuple[int, str]]:
    """Words in backticks, with their line."""
    for number, line in enumerate(prose(text).splitlines(), 1):
        for match in _INLINE.finditer(line):
            yield number, match[1]


def links(text: str) -> list[str]:
    """Targets of links and pictures."""
    plain = _INLINE.sub("", prose(text))
    return [match[1] or match[2] for match in _LINK.finditer(plain)]


def commands(text: str) -> list[Command]:
    """What readers may type: lines of blocks for a shell or of no language, and inline code."""
    lines: list[tuple[int, str]] = []
    for block in blocks(text):
        if block.language in ("", "sh", "bash", "console"):
            joined = block.text.replace("\\\n", "  ")
            lines += [(block.line + i, line) for i, line in enumerate(joined.splitlines())]
    lines += list(inline_code(text))
    found = []
    for number, line in lines:
        for words in _split(line):
            found.append(Command(number, words))
    return found


def _split(line: str) -> Iterator[tuple[str, ...]]:
    """The simple commands of a line, without prompt, variables before them and redirections."""
    try:
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
    except ValueError:
        return
    current: list[str] = []
    for word in [*words, ";"]:
        if word in (";", "&&", "||", "|"):
            while current and re.fullmatch(r"\w+=.*", current[0]):
                current.pop(0)
            if current:
                current[0] = current[0].removeprefix(".venv/bin/")
                yield tuple(current)
            current = []
        elif word not in ("…", "...") and not re.match(r"[<>]", word):
            current.append(word)


def headings(text: str) -> set[str]:
    """Anchors as GitHub makes them."""
    found = set()
    for line in prose(text).splitlines():
        match = re.match(r"#+ (.*)", line)
        if match:
            plain = re.sub(r"[`*]", "", match[1]).strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found
