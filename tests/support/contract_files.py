"""The contracts as files: schemas, examples, and a second validator to compare with."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import jsonschema
import jsonschema_rs

from ratchet.bus.message import decode
from ratchet.bus.schemas import load_schema, open_view
from ratchet.core.contract.directory import stored_kinds
from ratchet.core.resources import resource_dir
from ratchet.core.service.contracts import load_contracts
from tools.invalid_examples import invalid_examples

ROOT = resource_dir("contracts")
CONTRACTS = load_contracts()
STORED = stored_kinds(ROOT)
TOPIC_OF = {topic.schema: topic for topic in CONTRACTS.topics.values() if topic.schema}
SCHEMAS: dict[str, Any] = {name: load_schema(ROOT, name) for name in TOPIC_OF}
"""Of messages."""
SUMMARIES: dict[str, Any] = {one.summary: load_schema(ROOT, one.summary) for one in TOPIC_OF.values() if one.summary}
"""Of the summaries that messages have in a header."""
ALL_SCHEMAS: dict[str, Any] = SCHEMAS | SUMMARIES | {one.schema: load_schema(ROOT, one.schema) for one in STORED}
"""Of messages, their summaries, and of what is stored beside them."""

T = TypeVar("T")
ABSENT = object()
"""As a value: leave the member out."""


@dataclass(frozen=True)
class Example:
    """One example; `rule` and `at` say what an invalid one breaks, as its name says."""

    schema: str
    name: str
    document: Any

    @property
    def at(self) -> list[str | int]:
        """Where it is broken."""
        parts = self.name.split(".")[:-1]
        return [int(part) if part.isdigit() else part for part in parts]

    @property
    def rule(self) -> str:
        """The keyword that it breaks."""
        return self.name.rsplit(".", 1)[-1]

    def __str__(self) -> str:
        return f"{self.schema}-{self.name}"


def examples(kind: str, schema: str = "*", root: Path = ROOT) -> list[Example]:
    """The `valid` or `invalid` examples of one schema, or of all, of the contracts in `root`."""
    directories = sorted((root / "examples").glob(schema))
    read = {"valid": _valid_examples, "invalid": invalid_examples}[kind]
    return [
        Example(directory.name, name, document)
        for directory in directories
        for name, document in read(directory).items()
    ]


def _valid_examples(directory: Path) -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text()) for file in sorted((directory / "valid").glob("*.json"))}


def example(schema: str, name: str = "full") -> Any:
    """A copy of one valid example."""
    return json.loads((ROOT / "examples" / schema / "valid" / f"{name}.json").read_text())


def http_example(service: str, kind: type[T]) -> T:
    """The example of what an HTTP interface takes or answers."""
    return decode((ROOT / "http" / "examples" / service / f"{kind.__name__}.json").read_bytes(), kind)


@cache
def fast(schema: str) -> jsonschema_rs.Draft202012Validator:
    """The strict view, by the validator that services use."""
    return jsonschema_rs.Draft202012Validator(ALL_SCHEMAS[schema], validate_formats=True)


@cache
def fast_open(schema: str) -> jsonschema_rs.Draft202012Validator:
    """The open view, by the validator that services use."""
    return jsonschema_rs.Draft202012Validator(open_view(ALL_SCHEMAS[schema]), validate_formats=True)


@cache
def oracle(schema: str) -> jsonschema.Draft202012Validator:
    """The strict view, by an independent validator."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(ALL_SCHEMAS[schema], format_checker=checker)


def with_member(document: Any, path: str, value: Any) -> Any:
    """A copy of `document` with the member at dotted `path` set, or left out when `value` is `ABSENT`."""
    changed = copy.deepcopy(document)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder = changed
    for part in parents:
        holder = holder[part]
    if value is ABSENT:
        del holder[last]
    else:
        holder[last] = value
    return changed


def subschemas(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every schema inside `schema` with its path, `schema` itself first; not those of embedded documents."""
    yield path, schema
    for key in ("items", "additionalProperties", "if", "then", "else"):
        if isinstance(schema.get(key), dict):
            yield from subschemas(schema[key], f"{path}/{key}")
    for key in ("oneOf", "allOf", "prefixItems"):
        for index, part in enumerate(schema.get(key, [])):
            yield from subschemas(part, f"{path}/{key}/{index}")
    for key in ("properties", "$defs"):
        for name, part in schema.get(key, {}).items():
            if "$schema" not in part:
                yield from subschemas(part, f"{path}/{key}/{name}")
