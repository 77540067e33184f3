"""Sphinx's settings for the site: the Markdown pages of the repository, where they stand. Built by `make docs`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]

project = "Ratchet"
version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    "*.md",
    "deploy/**/README.md",
    "contracts/README.md",
    "docs/*.md",
    "docs/**/*.md",
    "examples/**/README.md",
    "services/**/README.md",
    "tests/README.md",
]
exclude_patterns = [".*", "site", "**/node_modules"]
myst_heading_anchors = 4
# The tables in contracts/README.md stand two levels below its title; browsers draw the diagrams (mermaid).
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
highlight_language = "text"
html_theme = "furo"
html_title = f"Ratchet {version}"
html_static_path = ["static", "node_modules/@mermaid-js/tiny/dist"]
html_css_files = ["ratchet.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

PARTS = {
    "Begin": (
        "docs/guides/in-front-of-my-provider",
        "docs/guides/prompts",
        "docs/README",
        "docs/not-for",
        "docs/architecture",
        "docs/glossary",
    ),
    "Agents": (
        "docs/guides/agent-author",
        "docs/guides/telemetry",
        "docs/guides/other-languages",
        "docs/guides/redaction",
        "docs/guides/filters",
        "docs/guides/opt-out",
        "docs/guides/erasure",
        "docs/guides/retention",
        "docs/guides/frameworks",
    ),
    "Policies": (
        "docs/guides/bring-your-logs",
        "docs/guides/ml-engineer",
        "docs/guides/workflows",
        "docs/guides/vllm",
        "docs/learning",
        "docs/planning",
        "docs/analyst",
        "docs/self-learning-report",
        "docs/training-speed",
        "docs/gpu-report",
        "docs/canary-simulation",
        "docs/chaos",
        "docs/reward-drift",
        "docs/statistics",
    ),
    "Operation": (
        "docs/guides/operator",
        "docs/guides/laptop-to-server",
        "docs/guides/safety-suites",
        "docs/guides/sign-in",
        "docs/guides/console",
        "docs/guides/alerts",
        "docs/operations",
        "docs/guides/kubernetes",
        "docs/scale",
        "docs/guarantees",
        "docs/permissions",
        "docs/SECURITY",
    ),
    "To look up": ("docs/cli", "docs/settings", "docs/api/client", "docs/api/http", "docs/api/training"),
    "Changing Ratchet": (
        "docs/CONTRIBUTING",
        "docs/guides/contributor",
        "docs/guides/*",
        "contracts/README",
        "docs/api/decisions",
        "CHANGELOG",
    ),
    "Packages": ("services/**", "deploy/**", "examples/**", "tests/README"),
}
MENU = "".join(
    f"\n\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
    for caption, pages in PARTS.items()
)
LINK_TO_FOLDER = re.compile(r"\[([^]]*)\]\(([^):#]*)/\)")
FOLDERS = {"docs/adr": "docs/api/decisions.md", "contracts/http": "docs/api/http.md"}
"""The page that a site, which lists no folder, has in its place."""


def adapt(_: Sphinx, page: str, text: list[str]) -> None:
    """The first page gets the menu; a link to a folder becomes one to its page, or its words."""

    def link(match: re.Match[str]) -> str:
        folder = ((ROOT / page).parent / match[2]).resolve().relative_to(ROOT)
        instead = FOLDERS.get(folder.as_posix())
        return f"[{match[1]}](/{instead})" if instead else match[1]

    text[0] = LINK_TO_FOLDER.sub(link, text[0])
    if page == root_doc:
        text[0] += MENU


def add_diagrams(app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """A page with a diagram loads what draws it, 2.9 MB from beside the page; the others load nothing."""
    if "highlight-mermaid" in context.get("body", ""):
        app.add_js_file("mermaid.tiny.js", loading_method="defer")
        app.add_js_file("diagrams.js", loading_method="defer")


def forward(app: Sphinx, _: Exception | None) -> None:
    """Who opens the folder comes to the first page."""
    if app.builder.format == "html":
        page = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(page)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", adapt)
    app.connect("html-page-context", add_diagrams)
    app.connect("build-finished", forward)
