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
            "Each page names a decision that a newcomer would otherwise undo, its reasons, and what was not taken.",
            "Other reasons stand beside the code. A decision that was replaced is deleted; the numbers stay.",
            "",
            "| | decision |",
            "|---|---|",
            *rows,
            "",
            f"```{{toctree}}\n:hidden:\n\n{menu}\n```",
            "",
        ]
    )
