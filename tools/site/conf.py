"""Sphinx's settings for the site: the Markdown pages of the repository, where they stand. Built by `make docs`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]

project = "Ratchet"
version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    "*.md",
    "contracts/README.md",
    "docs/*.md",
    "docs/**/*.md",
    "examples/**/README.md",
    "services/**/README.md",
]
exclude_patterns = [".*", "site", "**/node_modules"]
myst_heading_anchors = 4
# The tables in contracts/README.md stand two levels below its title; a diagram (mermaid) is shown as its text.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "sidebar_width": "250px", "fixed_sidebar": True}
html_sidebars = {"**": ["about.html", "searchbox.html", "navigation.html"]}
html_copy_source = False

PARTS = {
    "Ratchet": ("docs/README", "docs/architecture", "docs/operations", "docs/guarantees", "docs/glossary", "CHANGELOG"),
    "Guides": ("docs/guides/*",),
    "To look up": ("docs/cli", "docs/settings", "docs/api/*", "contracts/README"),
    "Services": ("services/**",),
    "Examples": ("examples/**",),
    "Decisions and reports": ("docs/adr/*", "docs/reports/*"),
}
MENU = "".join(
    f"\n\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
    for caption, pages in PARTS.items()
)
LINK_TO_FOLDER = re.compile(r"\[([^]]*)\]\([^):#]*/\)")


def adapt(_: Sphinx, page: str, text: list[str]) -> None:
    """The first page gets the menu; a link to a folder, which a site cannot list, becomes its words."""
    text[0] = LINK_TO_FOLDER.sub(r"\1", text[0])
    if page == root_doc:
        text[0] += MENU


def forward(app: Sphinx, _: Exception | None) -> None:
    """Who opens the folder comes to the first page."""
    (Path(app.outdir) / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n')


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", adapt)
    app.connect("build-finished", forward)
