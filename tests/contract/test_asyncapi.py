"""The AsyncAPI document: valid by the official schema of AsyncAPI 3.0, complete, and true to the registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import jsonschema
import jsonschema_rs
import msgspec
import pytest

from ratchet.bus.envelope import Sealer
from ratchet.bus.received import Received
from ratchet.cli.interfaces import asyncapi
from ratchet.core.contract import MESSAGES
from tests.support.contract_files import CONTRACTS, ROOT, SCHEMAS, SUMMARIES, TOPIC_OF, example, fast

SPECIFICATION = ROOT.parent / "examples/node/node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json"
"""The official JSON Schema, from the npm package of the AsyncAPI initiative (`make setup` installs it)."""

DOCUMENT: Any = asyncapi(ROOT, "0.1")
assert SPECIFICATION.is_file(), "AsyncAPI's schema is missing: `make setup` installs it"
OFFICIAL = jsonschema_rs.Draft7Validator(json.loads(SPECIFICATION.read_text()))


def references(part: Any) -> Iterator[str]:
    """Every `$ref` inside `part`."""
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def resolve_reference(reference: str) -> Any:
    """The part of the document that a reference leads to."""
    part = DOCUMENT
    for key in reference.removeprefix("#/").split("/"):
        part = part[key]
    return resolve_reference(part["$ref"]) if "$ref" in part else part


def address(subject: str) -> str:
    """A subject template in AsyncAPI's words."""
    return subject.replace("<", "{").replace(">", "}")


def test_the_document_is_valid_by_the_official_schema() -> None:
    assert [f"{error.instance_path}: {error.message}" for error in OFFICIAL.iter_errors(DOCUMENT)] == []


@pytest.mark.parametrize("member", ["addres", "adress"])
def test_the_official_schema_would_notice_a_mistake(member: str) -> None:
    channel = {**DOCUMENT["channels"]["reward.v1"], member: "agent.rl.reward.v1"}
    assert not OFFICIAL.is_valid({**DOCUMENT, "channels": {**DOCUMENT["channels"], "reward.v1": channel}})


def test_references_lead_inside_the_document() -> None:
    schemas = [message["payload"]["schema"] for message in DOCUMENT["components"]["messages"].values()]
    inside = {reference for schema in schemas for reference in references(schema)}
    own = set(references(DOCUMENT)) - inside
    assert own
    assert all(resolve_reference(reference) for reference in own)
    embedded = {part["$id"] for schema in schemas for part in schema.get("$defs", {}).values() if "$id" in part}
    assert embedded
    assert {reference for reference in inside if not reference.startswith("#")} == embedded


def test_channels_are_the_subjects_with_their_parameters() -> None:
    templates = {subject.replace("<", "{").replace(">", "}") for t in TOPIC_OF.values() for subject in t.subjects}
    assert {channel["address"] for channel in DOCUMENT["channels"].values()} == templates
    role = DOCUMENT["channels"]["turn.v1.role"]
    assert (role["address"], set(role["parameters"])) == ("agent.rl.turn.v1.{role}", {"role"})
    assert "parameters" not in DOCUMENT["channels"]["turn.v1"]


def test_producers_send_and_consumers_receive_on_all_channels_of_a_topic() -> None:
    listed = {
        (tag["name"], operation["action"], resolve_reference(operation["channel"]["$ref"])["address"])
        for operation in DOCUMENT["operations"].values()
        for tag in operation["tags"]
    }
    expected = {
        (service, action, address(subject))
        for topic in TOPIC_OF.values()
        for action, services in (("send", topic.producers), ("receive", topic.consumers))
        for service in services
        for subject in topic.subjects
    }
    assert listed == expected


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_the_payload_of_a_message_is_its_schema_and_its_examples_keep_it(name: str) -> None:
    message = DOCUMENT["components"]["messages"][name]
    assert message["payload"]["schema"] == SCHEMAS[name]
    assert [shown["name"] for shown in message["examples"]] == ["minimal", "full"]
    assert all(fast(name).is_valid(shown["payload"]) for shown in message["examples"])


def cause() -> Received[Any]:
    """An event that another one follows from."""
    message = msgspec.convert(example("trajectory.v1"), MESSAGES[TOPIC_OF["trajectory.v1"].name])
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    at = datetime(2026, 1, 2, tzinfo=UTC)
    return Received(message, message.subject, "RL_TRAJECTORIES", 1, 1, message.event_id, at, "first", headers=trace)


def test_the_headers_are_those_that_services_send() -> None:
    large = {**example("turn.v1"), "error": "x" * 20_000}
    message = msgspec.convert(large, MESSAGES[TOPIC_OF["turn.v1"].name])
    sealer = Sealer(CONTRACTS, "gateway", lambda: datetime(2026, 1, 2, tzinfo=UTC), rules="3f1c")
    headers = sealer.seal(message, cause()).headers
    described = resolve_reference("#/components/schemas/CloudEventsHeaders")
    assert set(headers) == set(described["properties"])
    jsonschema.Draft7Validator(described, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER).validate(headers)
    assert described["properties"]["ratchet-summary"]["contentSchema"] == SUMMARIES["turn.summary.v1"]
    assert fast("turn.summary.v1").is_valid(json.loads(headers["ratchet-summary"]))


def test_streams_and_buckets_are_those_of_the_registry() -> None:
    jetstream = DOCUMENT["x-jetstream"]
    assert {name: spec["max_msgs"] for name, spec in jetstream["streams"].items()} == {
        stream.name: stream.max_msgs for stream in CONTRACTS.streams.values()
    }
    assert set(jetstream["buckets"]) == set(CONTRACTS.buckets)
