"""Writes constraints.txt from the versions installed now: `make constraints`, after an intended change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HEAD = "# Exact versions of everything that make setup installs. Regenerate: make constraints\n"
OURS_OR_PIP = {"ratchet-rl", "pip"}


def pins(frozen: str) -> list[str]:
    """`name==version` lines without ourselves, without the build that a version was made for (`+cpu`)."""
    pinned = [line for line in frozen.splitlines() if re.match(r"[\w.-]+==", line)]
    kept = [line.split("+", 1)[0] for line in pinned if line.split("==")[0].lower() not in OURS_OR_PIP]
    return sorted(kept, key=str.lower)


def main() -> None:
    """Freeze this environment."""
    frozen = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--all"], check=True, capture_output=True, text=True
    ).stdout
    Path("constraints.txt").write_text(HEAD + "\n".join(pins(frozen)) + "\n")


if __name__ == "__main__":
    main()
