"""Writes what is made from the contracts: the tables of README.md, and asyncapi.json.

python tools/contract_documents.py           write the tables and the document
python tools/contract_documents.py --check   exit 1 when they are not what topics.json, schemas and examples say
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from asyncapi_document import document

from ratchet.core.contract.directory import stored_kinds

ROOT = Path(__file__).resolve().parents[1] / "contracts"
BEGIN, END = "<!-- made by tools/contract_documents.py: begin -->", "<!-- made by tools/contract_documents.py: end -->"
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
    """The tables of README.md."""
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
        ("bucket", "what", "written by", "values kept", "kept for"),
        (
            (f"`{name}`", b["description"], ", ".join(b["writers"]), str(b["history"]), age(b.get("max_age_s")))
            for name, b in topics["buckets"].items()
        ),
    )
    parts = {
        "Subjects": subjects,
        "Streams": streams,
        "Consumers": readers(topics),
        "Buckets": buckets,
        "Stored values": stored(),
    }
    return "\n\n".join(f"### {title}\n\n{part}" for title, part in parts.items())


def stored() -> str:
    """What keys of buckets and objects hold."""
    files = {file.name: file.relative_to(ROOT) for file in (ROOT / "schemas").rglob("*.json")}
    return table(
        ("where", "what", "schema", "from", "to"),
        (
            (
                re.sub(r"(bucket|key|object|format|file) (\S+?)(?=,|$)", r"\1 `\2`", one.where),
                one.description,
                f"[{one.schema}]({files[f'{one.schema}.schema.json']})",
                ", ".join(one.writers),
                ", ".join(one.readers) or "(private)",
            )
            for one in stored_kinds(ROOT)
        ),
    )


def readers(topics: Any) -> str:
    """The durable consumers and the projections."""
    durable = (
        (f"`{name}`", c["service"], f"`{c['stream']}`", code(c["topics"]), f"acks within {c['ack_wait_s']} s")
        for name, c in topics["consumers"].items()
    )
    folding = (
        (f"`{name}`", p["service"], f"`{p['stream']}`", code(p["topics"]), f"projection into `{p['bucket']}`")
        for name, p in topics["projections"].items()
    )
    return table(("consumer", "service", "stream", "topics", "how"), (*durable, *folding))


def age(max_age_s: int | None) -> str:
    """How long a value stays that is not written again."""
    return "always" if max_age_s is None else span(max_age_s)


def span(seconds: int) -> str:
    """A time in its largest unit."""
    return f"{seconds // DAY} days" if seconds >= DAY else f"{seconds // 60} minutes"


def bounds(stream: Any) -> tuple[str, str, str]:
    """How long, how much, and what happens then."""
    kept = span(stream["max_age_s"]) if stream["max_age_s"] else "until done"
    kept += ", in memory" if stream.get("storage") == "memory" else ""
    limits = [f"{stream['max_msgs']:,} messages"] if stream["max_msgs"] else []
    limits += [f"{stream['max_bytes'] // MIB:,} MiB"] if stream["max_bytes"] else []
    full = "refuses" if stream["discard"] == "new" else "drops the oldest"
    return kept, ", ".join(limits) or "-", full if limits else "-"


def readme() -> str:
    """README.md as it should be."""
    text = (ROOT / "README.md").read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    fresh = tables(json.loads((ROOT / "topics.json").read_text()))
    return f"{head}{BEGIN}\n\n{fresh}\n\n{END}{tail}"


def asyncapi() -> str:
    """asyncapi.json as it should be."""
    topics = json.loads((ROOT / "topics.json").read_text())
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    examples = {topic["schema"]: shown(topic["schema"]) for topic in topics["topics"].values()}
    return json.dumps(document(topics, examples, project["version"]), indent=2, ensure_ascii=False) + "\n"


def shown(schema: str) -> list[Any]:
    """The shortest and the fullest valid example of a schema, as AsyncAPI wants them."""
    files = [ROOT / "examples" / schema / "valid" / f"{name}.json" for name in ("minimal", "full")]
    return [{"name": file.stem, "payload": json.loads(file.read_text())} for file in files]


def made() -> dict[Path, str]:
    """Every file that is made, as it should be."""
    return {ROOT / "README.md": readme(), ROOT / "asyncapi.json": asyncapi()}


def stale() -> list[Path]:
    """Files that are not as they should be."""
    return [file for file, text in made().items() if not file.exists() or file.read_text() != text]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description="Writes what is made from the contracts.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is not fresh")
    chosen = parser.parse_args(arguments)
    for file in stale():
        if chosen.check:
            sys.stderr.write(f"contracts/{file.name} is not fresh: run `python tools/contract_documents.py`\n")
            return 1
        file.write_text(made()[file])
    return 0


if __name__ == "__main__":
    sys.exit(main())
