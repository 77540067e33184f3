"""A request for training as the HTTP API takes it: the strict schema of the message, without the nesting.

Closed and strictly typed: a misspelt setting is refused, not ignored. `JobIn` adds what the schema leaves open:
defaults, and meanings that a member has in this API only.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any
from uuid import UUID

import jsonschema_rs
import msgspec

from ratchet.bus.message import decode, named_id
from ratchet.bus.schemas import load_schema
from ratchet.core.contract import TrainingRequest
from ratchet.core.contract.http.jobs import DatasetIn, JobIn
from ratchet.core.contract.training import Dataset, RequestMetadata, TrainingConfig
from ratchet.core.errors import Rejected
from ratchet.core.resources import resource_dir
from ratchet.core.service.control_api import Body
from ratchet.core.service.openapi import Schema, components, plain_components, reference

PROBLEMS = 10
"""So many problems of one body are named at most."""
VALUES = 5_000
"""Most values of a body: the schema is checked to the end before the first problem is known, for .2 s where all are."""


def training_request(job: JobIn, job_id: str, now: datetime) -> TrainingRequest:
    """The message of a request. `job_id` is used where the request brings neither an id nor a key."""
    if job.training_job_id is not None:
        job_id = str(UUID(job.training_job_id))
    elif job.idempotency_key:
        job_id = named_id("job", job.role, job.idempotency_key)
    config = {name: getattr(job, name) for name in TrainingConfig.__struct_fields__}
    config["dataset"] = Dataset(**msgspec.structs.asdict(job.dataset))
    metadata = RequestMetadata(notes=job.notes, previous_training_job=job.previous_training_job)
    return TrainingRequest(
        training_job_id=job_id,
        timestamp=now,
        requester=job.requester,
        trigger_reason="manual",
        training_config=TrainingConfig(**config),
        role=job.role,
        evaluation=job.evaluation,
        priority=job.priority,
        metadata=metadata if metadata != RequestMetadata() else None,
        idempotency_key=job.idempotency_key,
        deadline=job.deadline,
        start_hours=job.start_hours,
        offer=job.offer,
    )


def job_body() -> Body:
    """How the body is read, by schemas that follow from the contract's."""
    strict, kinds = load_schema(resource_dir("contracts"), "training.request.v1"), (JobIn, DatasetIn)
    document = {**reference(JobIn), "components": {"schemas": job_schemas(strict, plain_components(kinds))}}
    parts: Mapping[str, Schema] = document["components"]["schemas"]
    validator = jsonschema_rs.Draft202012Validator(document, validate_formats=True, offline=True)

    def read(content: bytes) -> JobIn:
        """Raises `Rejected` with every member that is wrong."""
        if content.count(b",") > VALUES:
            raise Rejected(f"body: it holds more than {VALUES} values")
        try:
            body = _without_nulls(decode(content))
            problems = [_problem(error, parts) for error in islice(validator.iter_errors(body), PROBLEMS)]
            if problems:
                raise Rejected("; ".join(f"{place}: {reason}" for place, reason in problems), param=problems[0][0])
            return msgspec.convert(body, JobIn)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Rejected(f"body: {error}") from error

    return Body(read, lambda: job_schemas(strict, components(kinds)))


def job_schemas(strict: Schema, stated_by_types: Mapping[str, Schema]) -> dict[str, Schema]:
    """`JobIn` and its parts, each under its name, from the strict schema of the message and what our types add."""
    schemas: dict[str, Schema] = {}
    top = strict["properties"]
    stated = {**top["metadata"]["properties"], **top, **top["training_config"]["properties"]}
    members = {name: stated[name] for name in JobIn.__struct_fields__}
    members["algorithm"] = {"type": "string"}  # an installation has its own, and refuses others
    members["base_model"] = {**members["base_model"], "minLength": 1}
    whole = {"type": "object", "additionalProperties": False, "required": ["algorithm"], "properties": members}
    _name_objects(JobIn.__name__, whole, strict.get("$defs", {}), schemas)
    for name in (JobIn.__name__, DatasetIn.__name__):
        schema, own = schemas[name], stated_by_types[name]
        schema["description"] = own["description"]
        for member, added in own["properties"].items():
            kept = {key: added[key] for key in ("description", "default") if added.get(key) not in (None, {})}
            schema["properties"][member] = {**schema["properties"][member], **kept}
        schema["required"] = own.get("required", [])
        if not schema["required"]:
            del schema["required"]
    return schemas


def _name_objects(name: str, schema: Schema, parts: Mapping[str, Schema], schemas: dict[str, Schema]) -> None:
    """Put an object under its name, and every object in it under a name of its own."""
    members: dict[str, Schema] = {}
    for member, stated in schema["properties"].items():
        resolved = {**parts[stated["$ref"].rsplit("/", 1)[1]], **stated} if "$ref" in stated else stated
        if "properties" in resolved:
            part = _part(member)
            _name_objects(part, {key: value for key, value in resolved.items() if key != "$ref"}, parts, schemas)
            resolved = {"$ref": f"#/components/schemas/{part}"}
        members[member] = resolved
    schemas[name] = {"title": name, **schema, "properties": members}


def _part(member: str) -> str:
    """The name of the object that a member holds."""
    return f"{member.title().replace('_', '')}In"


def _without_nulls(value: Any) -> Any:
    """JSON without members that are null: they mean the same as absent ones."""
    if isinstance(value, dict):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    return value


def _problem(error: jsonschema_rs.ValidationError, parts: Mapping[str, Schema]) -> tuple[str, str]:
    """The member that is wrong, and the reason; a member that is missing or unknown counts as the place."""
    place, kind, reason = list(error.instance_path), error.kind, error.message
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        place, reason = [*place, kind.property], "is missing"
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
        unknown = str(kind.unexpected[0])
        known = parts.get(_part(str(place[-1])) if place else JobIn.__name__, {}).get("properties", {})
        near = get_close_matches(unknown, known, n=1)
        rest = f"; did you mean {near[0]}?" if near else f", only {', '.join(known)}" if known else ""
        reason = f"there is no such setting{rest}"
        place = [*place, unknown]
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Enum):
        reason = f"must be one of {', '.join(map(str, kind.options))}, not {error.instance!r:.100}"
    if place == ["start_hours"]:
        reason = f"must be two hours of the day in UTC, such as 22-6, not {error.instance!r:.100}"
    return ".".join(map(str, place)) or "body", reason
