"""Makes the site's list of decisions from their headings: `docs/adr` has no list of its own to keep."""

from __future__ import annotations

import re
from pathlib import Path

HEADING = re.compile(r"# (\d+)\. (.+)")


def decisions_page(folder: Path) -> str:
    """Every decision with its number, the newest last."""
    pages = sorted(folder.glob("*.md"))
    titles = [HEADING.match(page.read_text()) for page in pages]
    rows = [
        f"| {title[1]} | [{title[2]}](../adr/{page.name}) |" for page, title in zip(pages, titles, strict=True) if title
    ]
    menu = "\n".join(f"../adr/{page.stem}" for page in pages)
    return "\n".join(
        [
            "# Decisions",
            "",
            "Each page names a decision that would surprise a reader or that rejects a reasonable alternative, its",
            "reasons and what was measured. A decision that was replaced stays and names the one that replaced it.",
            "",
            "| | decision |",
            "|---|---|",
            *rows,
            "",
            f"```{{toctree}}\n:hidden:\n\n{menu}\n```",
            "",
        ]
    )
