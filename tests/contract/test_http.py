"""The HTTP interfaces: examples of every body, types that mirror them, and nothing taken away from a released one."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from ratchet.bus.compatibility import breaks
from ratchet.cli.interfaces import Interface
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.http import (
    analyst,
    answers,
    console,
    erasures,
    gateway,
    jobs,
    keys,
    models,
    rollouts,
    statistics,
    status,
    workflows,
)
from ratchet.core.contract.http.answers import Answer
from tests.support.contract_files import ROOT
from tools.docs.api_pages import document
from tools.record_release import interfaces, recorded_http

HTTP = ROOT / "http"
DOCUMENTS = {str(service): document(service) for service in Interface}
EXAMPLES = sorted((HTTP / "examples").glob("*/*.json"))
MODULES = (analyst, answers, console, erasures, gateway, jobs, keys, models, rollouts, statistics, status, workflows)
KINDS = {
    name: kind
    for module in MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}
DOCUMENTS_OF_OTHERS = {
    *("ChatRequest", "ChatAnswer", "CompletionRequest", "CompletionAnswer", "End", "Feedback", "OptOutAsked"),
    *("ResponsesRequest", "ResponsesAnswer", "InputItems"),
    *("MessagesRequest", "MessagesAnswer", "MessagesError", "CountRequest", "CountAnswer"),
    *("EmbeddingsRequest", "EmbeddingsAnswer"),
    *("TelemetryRequest", "TelemetryAnswer", "TelemetryStatus"),
}
"""Bodies of the gateway that agents and engines write: no type of ours mirrors them."""
TODAY = interfaces(DOCUMENTS)


def document(service: str) -> Any:
    return DOCUMENTS[service]


NO_DOCUMENTS = (["text/event-stream"], ["text/plain"], ["application/octet-stream"])
"""Bodies that no schema describes: their kinds of content."""


def bodies(service: str) -> Iterator[tuple[str, Any]]:
    """The place of every JSON body, and its schema; references to shared answers are resolved."""
    whole = document(service)
    for path, verbs in whole["paths"].items():
        for verb, operation in verbs.items():
            holders = {"body": operation.get("requestBody"), **operation["responses"]}
            for name, holder in holders.items():
                if holder is not None and "$ref" in holder:
                    holder = whole["components"]["responses"][holder["$ref"].rsplit("/", 1)[1]]  # noqa: PLW2901
                if holder is not None and [*holder.get("content", {})] not in NO_DOCUMENTS:
                    schema = holder.get("content", {}).get("application/json", {}).get("schema", {})
                    yield f"{verb.upper()} {path} {name}", schema


@pytest.mark.parametrize("service", sorted(DOCUMENTS))
def test_every_body_and_every_error_has_a_schema_of_its_own(service: str) -> None:
    listed = list(bodies(service))
    assert listed
    assert [place for place, schema in listed if "$ref" not in schema] == []


@pytest.mark.parametrize("service", ["analyst", "console", "coordinator", "deployer", "gateway", "workflows"])
def test_every_body_has_an_example_beside_the_document_that_describes_it(service: str) -> None:
    references = {schema["$ref"] for _, schema in bodies(service)}
    named = {reference.rsplit("/", 1)[1] for reference in references if reference.startswith("#/")}
    examples = {path.stem for path in EXAMPLES if path.parent.name == service}
    assert named == examples


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_example_keeps_its_schema_and_survives_its_type(path: Path) -> None:
    """The bodies in OpenAI's form, and an end and feedback, are documents: the gateway reads what it needs of them."""
    service, name = path.parent.name, path.stem
    schemas = document(service)["components"]["schemas"]
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    example = json.loads(path.read_text())
    assert list(jsonschema_rs.Draft202012Validator(schema, validate_formats=True).iter_errors(example)) == []
    if name not in DOCUMENTS_OF_OTHERS:
        kinds = {**KINDS, **vars(analyst)} if service == "analyst" else KINDS  # a rollout has a TrailOut, too
        read = msgspec.json.decode(path.read_bytes(), type=kinds[name])
        assert json.loads(msgspec.json.encode(read)) == example


ADDED = {"FeedbackTaken": {"note"}, "AnsweredModel": {"answered_by", "prices"}, "FetchedBundle": {"weight"}}
"""Members of answers that a gateway of an earlier release does not send."""


@pytest.mark.parametrize(
    "name", [name for name, kind in vars(gateway).items() if name in KINDS and kind not in {Answer, Bundle}]
)
def test_a_written_schema_has_the_members_of_its_type(name: str) -> None:
    schema = document("gateway")["components"]["schemas"][name]
    members = set(KINDS[name].__struct_fields__)
    assert set(schema["properties"]) == members
    assert set(schema["required"]) == members - ADDED.get(name, set())


def test_the_error_of_gateway_and_engine_is_the_one_of_the_control_apis() -> None:
    schema = document("gateway")["components"]["schemas"]["ErrorOut"]
    made = document("coordinator")["components"]["schemas"]["ErrorPart"]
    part = schema["properties"]["error"]
    assert (set(part["properties"]), part["required"]) == (set(made["properties"]), made["required"])


SERVICES = {"type": "object", "additionalProperties": False, "required": []}
"""The rules of the whole, which a record leaves out: a new service takes nothing from anybody."""


def test_interfaces_keep_what_was_released() -> None:
    released = {path.stem: json.loads(path.read_text()) for path in (HTTP / "released").glob("*.json")}
    broken = {version: [*breaks(SERVICES | old, TODAY)] for version, old in released.items()}
    assert not any(broken.values()), broken


def test_a_recorded_interface_holds_every_rule() -> None:
    kept = json.loads(recorded_http(DOCUMENTS))
    assert breaks(TODAY, SERVICES | kept) == []


@pytest.mark.parametrize(
    ("where", "change", "broken"),
    [
        (["$defs", "coordinator.JobOut", "properties"], {"eta_s": {"type": "number"}}, False),
        (["$defs", "coordinator.JobOut", "properties"], {"role": None}, True),
        (["$defs", "coordinator.JobOut", "properties"], {"attempt": {"type": "string"}}, True),
        (["$defs", "coordinator.JobOut"], {"required": ["role"]}, True),
        (["$defs", "coordinator.HyperparametersIn", "properties"], {"rank": {"type": "integer"}}, False),
        (["$defs", "coordinator.HyperparametersIn"], {"required": ["epochs"]}, True),
        (["$defs", "deployer.StartIn", "properties"], {"override": None}, True),
        (["properties", "deployer", "properties"], {"GET /v1/rollouts": None}, True),
        (["properties", "deployer", "properties"], {"GET /v1/more": {"type": "object"}}, False),
    ],
)
def test_an_interface_may_gain_optional_members_and_lose_none(where: list[str], change: Any, broken: bool) -> None:
    changed = copy.deepcopy(TODAY)
    part = changed
    for name in where:
        part = part[name]
    part |= change
    for name in [name for name, value in change.items() if value is None]:
        del part[name]
    assert bool(breaks(TODAY, changed)) is broken
