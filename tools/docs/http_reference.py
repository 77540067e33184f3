"""Makes the page about the HTTP interfaces from their OpenAPI documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

Document = Mapping[str, Any]
"""An OpenAPI document, or a part of one: `Any` because each member has its own form."""

VERBS = ("get", "put", "post", "patch", "delete")


def http_page(documents: Mapping[str, Document]) -> str:
    """All interfaces, each with its routes and the bodies that they take and give; by service."""
    contents = [f"- [{name}](#{name}): {document['info']['description']}" for name, document in documents.items()]
    parts = [
        "# HTTP reference",
        "Generated from `contracts/http` by `make docs`; do not edit.",
        "\n".join(" ".join(line.split()) for line in contents),
        *(_service(name, document) for name, document in documents.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _service(name: str, document: Document) -> str:
    routes = [
        _route(name, f"{verb.upper()} {path}", members[verb], document)
        for path, members in document["paths"].items()
        for verb in VERBS
        if verb in members
    ]
    schemas = document.get("components", {}).get("schemas", {})
    forms = [_form(name, title, schema) for title, schema in schemas.items()]
    return "\n\n".join([f"## {name}", *routes, *forms])


def _route(name: str, title: str, operation: Document, document: Document) -> str:
    said = operation.get("description") or operation.get("summary") or ""
    lines = [f"### {name}: {title}", " ".join(said.split())]
    parameters = [_resolved(one, document) for one in operation.get("parameters", ())]
    if parameters:
        rows = [
            (
                f"`{one['name']}`",
                one["in"],
                kind(name, one["schema"]),
                _meaning(one["schema"] | {"description": one.get("description", "")}),
            )
            for one in parameters
        ]
        lines.append(table(("parameter", "in", "type", ""), rows))
    body = operation.get("requestBody")
    if body:
        lines.append(f"Body: {_contents(name, body)}.")
    answers = [
        (code, _answer(name, answer, document)) for code, answer in sorted(operation.get("responses", {}).items())
    ]
    lines.append(table(("answer", ""), answers))
    return "\n\n".join(line for line in lines if line)


def _answer(name: str, answer: Document, document: Document) -> str:
    whole = _resolved(answer, document)
    said, body = whole.get("description", ""), _contents(name, whole)
    known = "" if said == "Successful Response" else said
    return ": ".join(part for part in (known.rstrip("."), body) if part)


def _contents(name: str, holder: Document) -> str:
    """What a body is, by media type; JSON needs no name."""
    kinds: list[str] = []
    for media, content in holder.get("content", {}).items():
        shown = kind(name, content.get("schema", {}))
        kinds.append(shown if media == "application/json" else f"`{media}`")
    return " or ".join(kinds)


def _form(name: str, title: str, schema: Document) -> str:
    said = " ".join(schema.get("description", "").split())
    if "properties" not in schema:
        return "\n\n".join(part for part in (f"#### {name} {title}", said, kind(name, schema)) if part)
    needed = schema.get("required", ())
    rows = [
        (f"`{member}`", kind(name, of), "yes" if member in needed else "", _meaning(of))
        for member, of in schema["properties"].items()
    ]
    return "\n\n".join(
        part for part in (f"#### {name} {title}", said, table(("member", "type", "required", ""), rows)) if part
    )


def _meaning(schema: Document) -> str:
    said = " ".join(schema.get("description", "").split())
    default = schema.get("default")
    return f"{said} Default: `{default}`.".strip() if default is not None else said


def kind(name: str, schema: Document) -> str:
    """A schema in a few words; a named one is a link to its table."""
    if "$ref" in schema:
        return _link(name, schema["$ref"])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(kind(name, one) for one in schema[several]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    types = schema.get("type", "anything")
    words = " or ".join([types] if isinstance(types, str) else types)
    if words == "array":
        return f"list of {kind(name, schema.get('items', {}))}"
    return " ".join([words, *_bounds(schema)])


def _bounds(schema: Document) -> Iterator[str]:
    if "format" in schema:
        yield f"({schema['format']})"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "maxLength": "length ≤"}
    for bound, sign in signs.items():
        if bound in schema:
            yield f"{sign} {schema[bound]}"


def _link(name: str, reference: str) -> str:
    """`gateway.openapi.yaml#/components/schemas/End` and `#/components/schemas/End` lead to the same table."""
    file, _, place = reference.partition("#")
    title, service = PurePosixPath(place).name, file.partition(".")[0] or name
    return f"[{title}](#{service}-{title.lower()})"


def _resolved(part: Document, document: Document) -> Document:
    """A part, or the part of the same document that it refers to."""
    if "$ref" not in part:
        return part
    found: Any = document
    for word in part["$ref"].removeprefix("#/").split("/"):
        found = found[word]
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in (head, ["---"] * len(head), *rows))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
