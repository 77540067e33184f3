"""Makes the page about the HTTP interfaces from their OpenAPI documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ratchet.cli.interfaces import HAND_WRITTEN, Interface

Document = Mapping[str, Any]
"""An OpenAPI document, or a part of one: `Any` because each member has its own form."""

VERBS = ("get", "put", "post", "patch", "delete")
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "maxLength": "length ≤"}


def http_page(documents: Mapping[str, Document]) -> str:
    """All interfaces by service, each with its routes and with the bodies of requests and answers."""
    contents = [f"- [{name}](#{name}): {document['info']['description']}" for name, document in documents.items()]
    parts = [
        "# HTTP reference",
        "For programs: OpenAPI of "
        + ", ".join(
            f"{{download}}`{name} <documents/{name}.openapi.{'yaml' if name in HAND_WRITTEN else 'json'}>`"
            for name in Interface
        )
        + "; AsyncAPI of the {download}`message bus <documents/asyncapi.json>`.",
        "\n".join(" ".join(line.split()) for line in contents),
    ]
    for name, document in documents.items():
        parts.append(f"## {name}")
        parts += [
            _route(name, f"{verb.upper()} {path}", members[verb], document)
            for path, members in document["paths"].items()
            for verb in VERBS
            if verb in members
        ]
        schemas = document.get("components", {}).get("schemas", {})
        parts += [_schema(name, title, schema) for title, schema in schemas.items()]
    return "\n\n".join(parts) + "\n"


def _route(name: str, title: str, operation: Document, document: Document) -> str:
    description = operation.get("description") or operation.get("summary") or ""
    lines = [f"### {name}: {title}", " ".join(description.split())]
    parameters = [_resolved(parameter, document) for parameter in operation.get("parameters", ())]
    if parameters:
        rows = [
            (
                f"`{parameter['name']}`",
                parameter["in"],
                kind(name, parameter["schema"]),
                _meaning(parameter["schema"] | {"description": parameter.get("description", "")}),
            )
            for parameter in parameters
        ]
        lines.append(table(("parameter", "in", "type", ""), rows))
    body = operation.get("requestBody")
    if body:
        lines.append(f"Body: {_contents(name, body)}.")
    answers: list[tuple[str, str]] = []
    for code, answer in sorted(operation.get("responses", {}).items()):
        whole = _resolved(answer, document)
        text = whole.get("description", "")
        meaning = "" if text == "Successful Response" else text.rstrip(".")
        answers.append((code, ": ".join(part for part in (meaning, _contents(name, whole)) if part)))
    lines.append(table(("answer", ""), answers))
    return "\n\n".join(line for line in lines if line)


def _contents(name: str, holder: Document) -> str:
    """The kinds of a body, by media type; JSON needs no name."""
    kinds: list[str] = []
    for media, content in holder.get("content", {}).items():
        shown = kind(name, content.get("schema", {}))
        kinds.append(shown if media == "application/json" else f"`{media}`")
    return " or ".join(kinds)


def _schema(name: str, title: str, schema: Document) -> str:
    required = schema.get("required", ())
    rows = [
        (f"`{member}`", kind(name, of), "yes" if member in required else "", _meaning(of))
        for member, of in schema.get("properties", {}).items()
    ]
    body = table(("member", "type", "required", ""), rows) if "properties" in schema else kind(name, schema)
    parts = (f"#### {name} {title}", " ".join(schema.get("description", "").split()), body)
    return "\n\n".join(part for part in parts if part)


def _meaning(schema: Document) -> str:
    text = " ".join(schema.get("description", "").split())
    default = schema.get("default")
    return f"{text} Default: `{default}`.".strip() if default is not None else text


def kind(name: str, schema: Document) -> str:
    """A schema in a few words; a named one is a link to its table."""
    if "$ref" in schema:  # `gateway.openapi.yaml#/components/schemas/End` is a table of the gateway
        file, _, place = schema["$ref"].partition("#")
        title, service = PurePosixPath(place).name, file.partition(".")[0] or name
        return f"[{title}](#{service}-{title.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(kind(name, part) for part in schema[several]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    types = schema.get("type", "anything")
    words = " or ".join([types] if isinstance(types, str) else types)
    if words == "array":
        return f"list of {kind(name, schema.get('items', {}))}"
    form = [f"({schema['format']})"] if "format" in schema else []
    return " ".join([words, *form, *(f"{sign} {schema[bound]}" for bound, sign in BOUNDS.items() if bound in schema)])


def _resolved(part: Document, document: Document) -> Document:
    """A part, or the part of the same document that it refers to."""
    if "$ref" not in part:
        return part
    target: Any = document
    for word in part["$ref"].removeprefix("#/").split("/"):
        target = target[word]
    return target


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    cells = (
        [" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in (head, ["---"] * len(head), *rows)
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
