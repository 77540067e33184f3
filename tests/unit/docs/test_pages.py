"""Links, anchors and paths of the documentation lead somewhere, and its Python compiles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.pages import ROOT, name_of, pages

PAGES = pages()
FENCE = re.compile(r"^[ \t]*```(\w*)[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PLACE = re.compile(r"`((?:services|docs|tests|tools|contracts|deploy|examples)/[\w./*-]*)`")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def prose(text: str) -> str:
    return FENCE.sub("", text)


@cache
def anchors(text: str) -> set[str]:
    """As GitHub makes them: lower case, hyphens for spaces, no punctuation."""
    titles = HEADING.findall(prose(text))
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


def broken_links(page: Path, text: str) -> Iterator[str]:
    for link in LINK.findall(prose(text)):
        if re.match(r"\w+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        linked = text if file == page else file.read_text() if file.is_file() and file.suffix == ".md" else ""
        if not (file == page or file.exists()) or (anchor and file.suffix == ".md" and anchor not in anchors(linked)):
            yield link


def missing_paths(text: str) -> list[str]:
    """Paths in backticks that are not in the repository; `*` stands for any name."""
    return [place for place in PLACE.findall(prose(text)) if not any(ROOT.glob(place.rstrip("/")))]


def broken_python(page: Path, text: str) -> Iterator[str]:
    for language, body in FENCE.findall(text):
        if language == "python":
            try:
                compile(body, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            except SyntaxError as error:
                yield str(error)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_paths_and_python_of_a_page_are_sound(page: Path) -> None:
    text = PAGES[page]
    assert [*broken_links(page, text), *missing_paths(text), *broken_python(page, text)] == []


def test_broken_links_paths_and_python_are_noticed() -> None:
    page = ROOT / "README.md"
    assert list(broken_links(page, "[a](docs/nope.md) [b](README.md#nope) [c](https://example.com)")) == [
        "docs/nope.md",
        "README.md#nope",
    ]
    assert missing_paths("`services/nope/` and `services/ratchet/*/settings.py`") == ["services/nope/"]
    assert list(broken_python(page, "```python\nif\n```\n"))


def test_every_guide_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    guides = [path.name for path in (ROOT / "docs" / "guides").glob("*.md")]
    assert [name for name in guides if f"guides/{name}" not in index] == []
