"""Every link leads somewhere, and every file that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, headings, inline_code, links, name_of

TOPS = ("heterps_hpc/", "data_prep/", "slurm/", "tests/", "benchmarks/", "docs/", "examples/",
        "tools/", "requirements/")  # fmt: skip
MADE_LATER = re.compile(r"[A-Z*{<…]|^benchmarks/results/|^examples/(runs|data)/")


def wrong_link(page: Path, target: str) -> str | None:
    """What is wrong with a link, or None."""
    if re.match(r"[a-z]+:", target):
        return None  # elsewhere: not ours to keep
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return "leads nowhere"
    if not file.is_relative_to(ROOT):
        return "leads out of the project"
    if anchor and file.suffix == ".md" and anchor not in headings(file.read_text()):
        return "has no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    found = {target: wrong_link(page, target) for target in links(page.read_text())}
    assert {target: wrong for target, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_files_exist(page: Path) -> None:
    missing = []
    for line, code in inline_code(page.read_text()):
        path = code.split()[0].rstrip("/,.;")
        if path.startswith(TOPS) and not MADE_LATER.search(path) and not (ROOT / path).exists():
            missing.append(f"{name_of(page)}:{line}: {path}")
    assert missing == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.split("#")[0]).resolve() for link in links(index.read_text())}
    pages = {page for page in PAGES if page.parent.name == "docs" and page != index}
    assert {name_of(page) for page in pages - linked} == set()


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("nowhere.md", "leads nowhere"),
        ("../../elsewhere", "leads nowhere"),
        ("index.md#no-such-heading", "has no such heading"),
        ("index.md", None),
        ("https://example.org/x", None),
    ],
)
def test_the_check_can_fail(target: str, wrong: str | None) -> None:
    assert wrong_link(ROOT / "docs" / "index.md", target) == wrong
