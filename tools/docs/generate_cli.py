"""Writes docs/cli.md from the parser. With --check, only compares and fails when it is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from cli_reference import reference

from ratchet.cli.__main__ import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def main() -> int:
    """Write or compare."""
    text = reference(app)
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        sys.stderr.write("docs/cli.md is out of date: run `make docs`\n")
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
