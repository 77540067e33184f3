"""Records a release: what later ones are held against (`ratchet contract check`, the tests), and upgraded from.

python -m tools.record_release 0.2   write contracts/released/0.2.json, contracts/http/released/0.2.json and
                                     deploy/released/0.2.json, anew until the changelog gives the version a date
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ratchet.bus.compatibility import LOOKED_INTO, WORDS
from ratchet.bus.schemas import load_schema
from ratchet.cli.interfaces import Interface, openapi
from ratchet.core.contract.directory import stored_kinds
from tools.release import RECORDED, notes
from tools.released_state import recorded_state

VERBS = ("get", "put", "post", "patch", "delete")
ROOT = Path(__file__).resolve().parents[1]
CONTRACTS = ROOT / "contracts"


def recorded(root: Path) -> str:
    """The topics, stored values, schemas and valid examples of the contracts in `root`, as the file of a release."""
    topics = json.loads((root / "topics.json").read_text())["topics"]
    stored = {kind.where: kind.schema for kind in stored_kinds(root)}
    kept = {
        name: {key: topic[key] for key in ("subjects", "schema", "summary") if key in topic}
        for name, topic in topics.items()
        if "schema" in topic
    }
    headers = {topic["summary"] for topic in kept.values() if "summary" in topic}
    names = sorted({topic["schema"] for topic in kept.values()} | headers | {*stored.values()})
    schemas = {name: without_words(load_schema(root, name)) for name in names}
    examples = {name: _valid_examples(root, name) for name in names}
    parts = {
        "topics": _lines(kept, 1),
        "stored": _lines(stored, 1),
        "schemas": _lines(schemas, 1),
        "examples": _lines(examples, 2),
    }
    return "{\n" + ",\n".join(f'"{name}": {text}' for name, text in parts.items()) + "\n}\n"


def recorded_http(documents: Mapping[str, Any]) -> str:
    """The HTTP interfaces of OpenAPI documents by service, as the file of a release."""
    schema = without_words(interfaces(documents))
    parts = {name: _lines(schema[name], 2 if name == "properties" else 1) for name in ("properties", "$defs")}
    return "{\n" + ",\n".join(f'"{name}": {text}' for name, text in parts.items()) + "\n}\n"


def interfaces(documents: Mapping[str, Any]) -> Any:
    """The HTTP interfaces as one JSON Schema: a member for each service, in it one for each operation and its bodies.

    Two of them are compared as two versions of a message are: an operation, an answer or a member that is gone, or is
    asked for and was not, breaks a reader who keeps to the older one.
    """
    parts = {
        f"{service}.{name}": _closed(_local(schema, service))
        for service, document in documents.items()
        for name, schema in document.get("components", {}).get("schemas", {}).items()
    }
    services = {service: dict(_operations(document, service)) for service, document in documents.items()}
    return {**_object({name: _object(operations) for name, operations in services.items()}), "$defs": parts}


def _operations(document: Any, service: str) -> Iterator[tuple[str, Any]]:
    for path, members in document["paths"].items():
        for verb in (verb for verb in VERBS if verb in members):
            operation = members[verb]
            sent = [_resolved(parameter, document) for parameter in operation.get("parameters", ())]
            asked = {
                f"{parameter['in']} {parameter['name']}": parameter for parameter in sent if parameter["in"] != "path"
            }
            needed = [name for name, parameter in asked.items() if parameter.get("required")]
            taken = {
                name: _alternatives(_closed(_local(parameter["schema"], service))) for name, parameter in asked.items()
            }
            body = _content(_resolved(operation.get("requestBody", {}), document), service)
            answers = {
                f"answer {status}": _content(_resolved(answer, document), service)
                for status, answer in operation["responses"].items()
            }
            request = _object({**taken, "body": body}, [*needed, *(["body"] if body else [])])
            yield f"{verb.upper()} {path}", _object({"request": request, **answers})


def _object(members: Any, required: list[str] | None = None) -> Any:
    return {"type": "object", "additionalProperties": False, "required": required or [], "properties": members}


def _alternatives(schema: Any) -> Any:
    """A parameter's schema in the keyword whose parts are compared one by one."""
    return {"oneOf" if name == "anyOf" else name: part for name, part in schema.items()}


def _content(holder: Any, service: str) -> Any:
    """The schema of a body; empty where there is no JSON."""
    content = holder.get("content", {}).get("application/json", {"schema": {}})
    return _closed(_local(content["schema"], service))


def _local(schema: Any, service: str) -> Any:
    """A schema whose references lead into one set of parts, named by service."""
    if isinstance(schema, list):
        return [_local(part, service) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        document, _, place = schema["$ref"].partition("#")
        return {"$ref": f"#/$defs/{(document or service).partition('.')[0]}.{place.rsplit('/', 1)[1]}"}
    return {name: _local(part, service) for name, part in schema.items()}


def _closed(schema: Any) -> Any:
    """A schema whose objects have the members that it names: what else a reader ignores has no meaning yet."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    return {"additionalProperties": False, **closed} if "properties" in closed and "allOf" not in closed else closed


def _resolved(part: Any, document: Any) -> Any:
    """A part of a document, or the part that it refers to."""
    if "$ref" not in part:
        return part
    target: Any = document
    for word in part["$ref"].removeprefix("#/").split("/"):
        target = target[word]
    return target


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
    """JSON with a line for each member or element, `depth` levels deep."""
    if depth == 0:
        return json.dumps(members, ensure_ascii=False)
    if isinstance(members, list):
        return "[\n" + ",\n".join(_lines(element, depth - 1) for element in members) + "\n]"
    return (
        "{\n"
        + ",\n".join(f"{json.dumps(name)}: {_lines(member, depth - 1)}" for name, member in members.items())
        + "\n}"
    )


def record() -> dict[str, str]:
    """The files of a release as it would be today, by their folders."""
    contracts = recorded(CONTRACTS)
    state = recorded_state(CONTRACTS, json.loads(contracts)["examples"])
    documents = {str(service): yaml.safe_load(openapi(service, CONTRACTS)) for service in Interface}
    return dict(zip(RECORDED, (contracts, recorded_http(documents), f"{_lines(state, 2)}\n"), strict=True))


def main() -> None:
    """Write the files of a release."""
    parser = argparse.ArgumentParser(description="Records the contracts and the stores in force as a release.")
    parser.add_argument("version", help="such as 0.2")
    version: str = parser.parse_args().version
    if notes(ROOT, version):
        sys.exit(f"{version} has a date in CHANGELOG.md: it is released, and its record stays")
    for folder, text in record().items():
        (ROOT / folder).mkdir(exist_ok=True)
        (ROOT / folder / f"{version}.json").write_text(text)


if __name__ == "__main__":
    main()
