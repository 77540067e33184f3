"""Interfaces as documents, made from the code: what `ratchet contract openapi` and `ratchet contract asyncapi` print.

Source: AsyncAPI Specification 3.0.0. What it has no words for (streams, durable consumers, projections, buckets)
stands under the extension `x-jetstream`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.bus.schemas import Json, load_schema, read_document

if TYPE_CHECKING:
    from ratchet.core.service.control_api import ControlApi


class Interface(StrEnum):
    """A service that answers HTTP."""

    GATEWAY = "gateway"
    COORDINATOR = "coordinator"
    DEPLOYER = "deployer"
    CONSOLE = "console"
    WORKFLOWS = "workflows"
    ANALYST = "analyst"
    ENGINE = "engine"


HAND_WRITTEN = (Interface.GATEWAY, Interface.ENGINE)
"""Their bodies are OpenAI's and Anthropic's, of which our code reads what it needs."""

DESCRIBED_BY = {
    Interface.COORDINATOR: "ratchet.rl_coordinator.http",
    Interface.DEPLOYER: "ratchet.canary_deployer.http_api",
    Interface.CONSOLE: "ratchet.console.http_api",
    Interface.WORKFLOWS: "ratchet.workflows.http_api",
    Interface.ANALYST: "ratchet.analyst.http_api",
}
"""The modules whose `described_api` makes the others; imported when one is asked for, as variants are."""


def openapi(service: Interface, contracts: Path) -> str:
    """The document of a service: that of its routes, or for gateway and engine the one that was written by hand."""
    if service in HAND_WRITTEN:
        return (contracts / "http" / f"{service}.openapi.yaml").read_text()
    return json.dumps(control_api(service).document, indent=1, ensure_ascii=False) + "\n"


def control_api(service: Interface) -> ControlApi:
    """The routes of coordinator, deployer, workflows, analyst or console, for their document alone."""
    return import_module(DESCRIBED_BY[service]).described_api()


PREFIX = "agent.rl."
_PARAMETER = re.compile(r"<(\w+)>")
_ACTIONS = {"producers": "send", "consumers": "receive"}
_SCHEMA_FORMAT = "application/schema+json;version=draft-2020-12"

_HEADERS: Json = {
    "type": "object",
    "description": (
        "CloudEvents 1.0 in NATS headers (binary mode). Services of Ratchet send all that have a value. A plain "
        "publisher may leave out every one of them; without `Nats-Msg-Id` a repeated message is stored twice in the "
        "stream and recognised only by its consumers."
    ),
    "properties": {
        "Nats-Msg-Id": {
            "type": "string",
            "description": (
                "Unique in the stream, which holds all roles: it drops a second message with the same one for two"
                " minutes, whatever that says, and answers `duplicate: true`. Equal to `ce-id`, but for a trajectory or"
                " an end of which its agent said something: what is said later is no repetition."
            ),
            "examples": ["5f0c3c2e-6f0e-5a63-9c1c-0c9f6f0f4b1d"],
        },
        "ce-specversion": {"type": "string", "const": "1.0", "description": "Version of CloudEvents."},
        "ce-id": {
            "type": "string",
            "description": "Id of the event: the same logical event has the same id wherever it is made.",
            "examples": ["5f0c3c2e-6f0e-5a63-9c1c-0c9f6f0f4b1d"],
        },
        "ce-type": {"type": "string", "description": "The topic.", "examples": ["agent.rl.trajectory.v1"]},
        "ce-source": {"type": "string", "description": "Who sent it.", "examples": ["urn:ratchet:reward_computer"]},
        "ce-time": {"type": "string", "format": "date-time", "description": "When it was sent."},
        "ce-dataschema": {
            "type": "string",
            "description": "`$id` of the schema of the body.",
            "examples": ["urn:ratchet:schema:trajectory.v1"],
        },
        "ce-correlationid": {"type": "string", "description": "Id of the first event of the causal chain."},
        "ce-causationid": {"type": "string", "description": "Id of the event that this one follows from."},
        "traceparent": {"type": "string", "description": "W3C trace context of the cause."},
        "ratchet-summary": {
            "type": "string",
            "description": (
                "What readers that need little of a message read instead of its body, as JSON: of a turn, which may be "
                "large, what the canary's statistics need. Readers take the body of a message without one."
            ),
            "contentMediaType": "application/json",
        },
        "ratchet-redacted": {
            "type": "string",
            "description": (
                "Digest of the rules by which the sender took out secrets and personal data. The collector redacts, or "
                "refuses, what comes without."
            ),
            "examples": ["3f1c9d2ab7e04c65"],
        },
        "content-type": {"type": "string", "const": "application/json", "description": "Always JSON."},
        "content-encoding": {
            "type": "string",
            "enum": ["zstd"],
            "description": "Set when the body is compressed, as services do above 16 KiB.",
        },
    },
}


_TRAIT: Json = {
    "headers": {"$ref": "#/components/schemas/CloudEventsHeaders"},
    "contentType": "application/json",
    "correlationId": {
        "description": "Id of the first event of the causal chain.",
        "location": "$message.header#/ce-correlationid",
    },
}


def asyncapi(contracts: Path, version: str) -> Json:
    """The message bus: every subject with the schema and, in a checkout, examples of its messages."""
    topics = read_document(contracts / "topics.json")
    names = topics["topics"] = {name: topic for name, topic in topics["topics"].items() if "schema" in topic}
    summary = {**_HEADERS["properties"]["ratchet-summary"], "contentSchema": load_schema(contracts, "turn.summary.v1")}
    return {
        "asyncapi": "3.0.0",
        "id": "urn:ratchet:bus",
        "info": {
            "title": "Ratchet's message bus",
            "version": version,
            "description": ("Every message that processes and agents exchange, and the streams that store them."),
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "The broker of `ratchet up` at its usual port; `ratchet status` says which it is.",
            }
        },
        "channels": {
            key: _channel(topics, name, address) for name in names for key, address in _channels(topics, name)
        },
        "operations": {key: operation for name in names for key, operation in _operations(topics, name)},
        "components": {
            "messages": {_short(name): _message(topic, contracts) for name, topic in names.items()},
            "messageTraits": {"cloudevent": _TRAIT},
            "schemas": {
                "CloudEventsHeaders": {**_HEADERS, "properties": {**_HEADERS["properties"], "ratchet-summary": summary}}
            },
            "parameters": {
                key: {"description": spec["description"], "x-pattern": spec["pattern"]}
                for key, spec in topics["parameters"].items()
            },
        },
        "x-jetstream": _jetstream(topics),
    }


def _short(topic: str) -> str:
    return topic.removeprefix(PREFIX)


def _address(template: str) -> str:
    return _PARAMETER.sub(r"{\1}", template)


def _channels(topics: Json, name: str) -> Iterator[tuple[str, str]]:
    """(key, template) of every channel of a topic: one for the bare subject, one for that with parameters."""
    for template in topics["topics"][name]["subjects"]:
        yield ".".join([_short(name), *_PARAMETER.findall(template)]), template


def _channel(topics: Json, name: str, template: str) -> Json:
    topic = topics["topics"][name]
    made = {
        "address": _address(template),
        "description": topic["description"],
        "messages": {_short(name): {"$ref": f"#/components/messages/{_short(name)}"}},
        "x-jetstream": {"stream": topic["stream"]},
    }
    used = _PARAMETER.findall(template)
    if used:
        made["parameters"] = {key: {"$ref": f"#/components/parameters/{key}"} for key in used}
    return made


def _operations(topics: Json, name: str) -> Iterator[tuple[str, Json]]:
    """What each service does with a topic, on each of its channels."""
    for kind, action in _ACTIONS.items():
        for service in topics["topics"][name][kind]:
            reading = _readers(topics, name, service) if action == "receive" else {}
            for channel, _ in _channels(topics, name):
                made: Json = {
                    "action": action,
                    "channel": {"$ref": f"#/channels/{channel}"},
                    "messages": [{"$ref": f"#/channels/{channel}/messages/{_short(name)}"}],
                    "tags": [{"name": service}],
                }
                yield f"{service}.{action}.{channel}", made | ({"x-jetstream": reading} if reading else {})


def _readers(topics: Json, name: str, service: str) -> Json:
    """The durable consumers and projections with which a service reads a topic; empty for ordered or direct reads."""
    readers = {
        kind: [key for key, spec in topics[kind].items() if spec["service"] == service and name in spec["topics"]]
        for kind in ("consumers", "projections")
    }
    return {kind: names for kind, names in readers.items() if names}


def _message(topic: Json, contracts: Path) -> Json:
    name = topic["schema"]
    files = [contracts / "examples" / name / "valid" / f"{shown}.json" for shown in ("minimal", "full")]
    return {
        "name": name,
        "title": topic["description"].rstrip("."),
        "traits": [{"$ref": "#/components/messageTraits/cloudevent"}],
        "payload": {"schemaFormat": _SCHEMA_FORMAT, "schema": load_schema(contracts, name)},
        "examples": [{"name": file.stem, "payload": read_document(file)} for file in files if file.is_file()],
    }


def _jetstream(topics: Json) -> Json:
    """Streams, readers and buckets as they are made, by name."""
    return {
        "description": (
            "Streams and buckets are made by `ratchet up`, and by the deployer as it starts. Durable consumers are "
            "pull consumers with explicit acks and no limit of deliveries at the broker (`max_deliver: -1`): after "
            "`max_deliveries` failures the reader itself copies the message to the dead letters. Projections are "
            "ordered readers that store what they have folded in a bucket, with the sequence they have reached."
        ),
        "streams": topics["streams"],
        "consumers": {name: _consumer(topics, spec) for name, spec in topics["consumers"].items()},
        "projections": topics["projections"],
        "buckets": topics["buckets"],
    }


def _consumer(topics: Json, spec: Json) -> Json:
    named = spec.get("subjects") or [s for topic in spec["topics"] for s in topics["topics"][topic]["subjects"]]
    return {**spec, "subjects": [_address(subject) for subject in named], "ack_policy": "explicit", "max_deliver": -1}
