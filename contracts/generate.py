"""Writes what is made from the contracts: the tables of README.md, and the record of a release.

python contracts/generate.py                 write the tables
python contracts/generate.py --check         exit 1 when they are not what topics.json says
python contracts/generate.py --release 0.2   record schemas and valid examples as released
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
BEGIN, END = "<!-- made by generate.py: begin -->", "<!-- made by generate.py: end -->"
DAY = 86400
MIB = 1024 * 1024


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(values: Iterable[str]) -> str:
    """Values as code, separated by commas."""
    return ", ".join(f"`{value}`" for value in values)


def tables(topics: Any) -> str:
    """The three tables of README.md."""
    subjects = table(
        ("subject", "what", "schema", "stream", "from", "to"),
        (
            (
                code(topic["subjects"]),
                topic["description"],
                f"[{topic['schema']}](schemas/agent-rl/{topic['schema']}.schema.json)",
                f"`{topic['stream']}`",
                ", ".join(topic["producers"]),
                ", ".join(topic["consumers"]),
            )
            for topic in topics["topics"].values()
        ),
    )
    streams = table(
        ("stream", "what", "kept", "at most", "when full"),
        ((f"`{name}`", stream["description"], *bounds(stream)) for name, stream in topics["streams"].items()),
    )
    buckets = table(
        ("bucket", "what", "written by", "read by", "values kept"),
        (
            (f"`{name}`", b["description"], ", ".join(b["writers"]), ", ".join(b["readers"]), str(b["history"]))
            for name, b in topics["buckets"].items()
        ),
    )
    return f"### Subjects\n\n{subjects}\n\n### Streams\n\n{streams}\n\n### Buckets\n\n{buckets}"


def bounds(stream: Any) -> tuple[str, str, str]:
    """How long, how much, and what happens then."""
    kept = f"{stream['max_age_s'] // DAY} days" if stream["max_age_s"] else "until done"
    limits = [f"{stream['max_msgs']:,} messages"] if stream["max_msgs"] else []
    limits += [f"{stream['max_bytes'] // MIB:,} MiB"] if stream["max_bytes"] else []
    full = "refuses" if stream["discard"] == "new" else "drops the oldest"
    return kept, ", ".join(limits) or "-", full if limits else "-"


def readme() -> str:
    """README.md as it should be."""
    text = (ROOT / "README.md").read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    made = tables(json.loads((ROOT / "topics.json").read_text()))
    return f"{head}{BEGIN}\n\n{made}\n\n{END}{tail}"


def release(version: str) -> None:
    """Record the schemas, the topics and the valid examples of `version`."""
    target = ROOT / "released" / version
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "schemas", target / "schemas")
    for directory in (ROOT / "examples").iterdir():
        shutil.copytree(directory / "valid", target / "examples" / directory.name / "valid")
    shutil.copy(ROOT / "topics.json", target / "topics.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description="Writes what is made from the contracts.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when README.md is not fresh")
    parser.add_argument("--release", metavar="VERSION", help="record the contracts as released")
    chosen = parser.parse_args(arguments)
    if chosen.release:
        release(chosen.release)
    elif chosen.check and readme() != (ROOT / "README.md").read_text():
        sys.stderr.write("contracts/README.md is not what topics.json says: run `python contracts/generate.py`\n")
        return 1
    elif not chosen.check:
        (ROOT / "README.md").write_text(readme())
    return 0


if __name__ == "__main__":
    sys.exit(main())
