"""The pages of the documentation: those in git, and the reference that `make docs` generates for the site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from tools.docs.api_pages import pages as generated

ROOT = Path(__file__).parents[2]
API = ROOT / "docs" / "api"
"""An earlier `make docs` may have left pages there: tests read them as they are generated now."""


@cache
def pages() -> Mapping[Path, str]:
    """Where each page is, and its text."""
    files = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "contracts" / "README.md",
        ROOT / "tests" / "README.md",
        *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent != API),
        *_own((ROOT / "services").rglob("README.md")),
        *_own((ROOT / "examples").rglob("*.md")),
    ]
    return {file: file.read_text() for file in files} | {API / name: text for name, text in generated().items()}


def _own(pages: Iterable[Path]) -> Iterable[Path]:
    """Without those of packages."""
    return sorted(page for page in pages if "node_modules" not in page.parts)


def name_of(page: Path) -> str:
    """For the name of a test."""
    return str(page.relative_to(ROOT))
