"""Records the contracts in force as a release: what later ones are held against (`ratchet contract check`, the tests).

python tools/record_release.py 0.2   write contracts/released/0.2.json; refuses when there is one
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ratchet.bus.compatibility import LOOKED_INTO, WORDS
from ratchet.bus.contracts import load_schema
from ratchet.bus.stored import stored_values

CONTRACTS = Path(__file__).resolve().parents[1] / "contracts"


def recorded(root: Path) -> str:
    """The topics, stored values, schemas and valid examples of the contracts in `root`, as the file of a release."""
    topics = json.loads((root / "topics.json").read_text())["topics"]
    stored = {one.where: one.schema for one in stored_values(root)}
    names = sorted({topic["schema"] for topic in topics.values()} | {*stored.values()})
    kept = {name: {"subjects": topic["subjects"], "schema": topic["schema"]} for name, topic in topics.items()}
    schemas = {name: without_words(load_schema(root, name)) for name in names}
    examples = {name: _valid_examples(root, name) for name in names}
    parts = {
        "topics": _lines(kept, 1),
        "stored": _lines(stored, 1),
        "schemas": _lines(schemas, 1),
        "examples": _lines(examples, 2),
    }
    return "{\n" + ",\n".join(f'"{name}": {text}' for name, text in parts.items()) + "\n}\n"


def without_words(schema: Any) -> Any:
    """A schema without titles and descriptions, wherever the check looks; what it compares whole stays whole."""
    if not isinstance(schema, dict):
        return schema
    return {key: _part(key, value) for key, value in schema.items() if key not in WORDS or key.startswith("$")}


def _part(key: str, value: Any) -> Any:
    if key not in LOOKED_INTO:
        return value
    if isinstance(value, list):
        return [without_words(part) for part in value]
    if key in {"properties", "$defs"}:
        return {name: without_words(part) for name, part in value.items()}
    return without_words(value)


def _valid_examples(root: Path, name: str) -> dict[str, Any]:
    files = sorted((root / "examples" / name / "valid").glob("*.json"))
    return {file.stem: json.loads(file.read_text()) for file in files}


def _lines(members: Any, depth: int) -> str:
    """JSON with a line for each member, `depth` levels deep."""
    if depth == 0:
        return json.dumps(members, ensure_ascii=False)
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_lines(one, depth - 1)}" for name, one in members.items()) + "\n}"


def main() -> None:
    """Write the file of a new release."""
    parser = argparse.ArgumentParser(description="Records the contracts in force as a release.")
    parser.add_argument("version", help="such as 0.2")
    with (CONTRACTS / "released" / f"{parser.parse_args().version}.json").open("x") as file:
        file.write(recorded(CONTRACTS))


if __name__ == "__main__":
    main()
