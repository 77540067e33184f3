"""Writes .env for docker-compose.yml: `make env`. New secrets are random; what .env says already stays as it is."""

from __future__ import annotations

import os
import secrets
import string
import sys
from pathlib import Path

LETTERS = string.ascii_letters + string.digits
LENGTH = 40
"""Letters and digits only: a secret stands in urls, in JSON and in nats-server's configuration without quoting."""


def secret() -> str:
    """A random secret. It begins with a letter, or nats-server would read some of them as numbers."""
    return secrets.choice(string.ascii_letters) + "".join(secrets.choice(LETTERS) for _ in range(LENGTH - 1))


def assignments(text: str) -> dict[str, str]:
    """Names and values of a file of `NAME=value` lines."""
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def completed(example: str, existing: str) -> str:
    """`existing` (the example when there is none) with secrets for empty values, and what the example has besides."""
    text = existing or example
    known = assignments(text)
    added = [line for line in example.splitlines() if (name := _name(line)) and name not in known]
    return "\n".join(_filled(line) for line in [*text.splitlines(), *added]) + "\n"


def _name(line: str) -> str | None:
    return None if "=" not in line or line.lstrip().startswith("#") else line.partition("=")[0].strip()


def _filled(line: str) -> str:
    return line + secret() if _name(line) and line.rstrip().endswith("=") else line


def main(folder: Path) -> int:
    """Write `.env` in `folder`, readable by this user only."""
    target = folder / ".env"
    existing = target.read_text() if target.exists() else ""
    text = completed((folder / ".env.example").read_text(), existing)
    if text == existing:
        sys.stdout.write(f"{target} is complete, nothing is changed\n")
        return 0
    partial = folder / ".env.partial"
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    partial.replace(target)
    sys.stdout.write(f"{target} is written; it holds secrets and is readable by you only\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(__file__).resolve().parents[2]))
