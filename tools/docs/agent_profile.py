"""Makes contracts/agent-profile.json, the tools of an agent that trains (`rl-trainer`), from the services' OpenAPI.

python -m tools.docs.agent_profile           write the file
python -m tools.docs.agent_profile --check   exit 1 when it is out of date
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ratchet.cli.interfaces import Interface, control_api
from ratchet.core.service.openapi import REFERENCE

Schema = Mapping[str, Any]
"""A part of an OpenAPI document: `Any` because each member has its own form."""

FILE = Path(__file__).resolve().parents[2] / "contracts" / "agent-profile.json"
PROFILE = "rl-trainer"
DEFINITION = "#/$defs/{name}"
TOOLS: Mapping[str, tuple[Interface, str]] = {
    "get_ml_status": (Interface.COORDINATOR, "GET /v1/status"),
    "get_training_status": (Interface.COORDINATOR, "GET /v1/status/training"),
    "get_dpo_status": (Interface.COORDINATOR, "GET /v1/status/dpo"),
    "plan_training": (Interface.COORDINATOR, "GET /v1/plan"),
    "preview_data": (Interface.COORDINATOR, "POST /v1/jobs/preview"),
    "start_training": (Interface.COORDINATOR, "POST /v1/jobs"),
    "list_jobs": (Interface.COORDINATOR, "GET /v1/jobs"),
    "get_job": (Interface.COORDINATOR, "GET /v1/jobs/{job_id}"),
    "cancel_job": (Interface.COORDINATOR, "POST /v1/jobs/{job_id}/cancel"),
    "resume_job": (Interface.COORDINATOR, "POST /v1/jobs/{job_id}/resume"),
    "list_models": (Interface.COORDINATOR, "GET /v1/models"),
    "get_lineage": (Interface.COORDINATOR, "GET /v1/models/{role}/{version}/lineage"),
    "list_rollouts": (Interface.DEPLOYER, "GET /v1/rollouts"),
    "get_rollout": (Interface.DEPLOYER, "GET /v1/rollouts/{role}"),
}
"""Its tools, in the order of a training. None moves traffic: that the deployer and people decide."""


def profile() -> dict[str, Any]:
    """The whole file."""
    documents = {service: control_api(service).document for service, _ in TOOLS.values()}
    tools = [_tool(name, service, route, documents[service]) for name, (service, route) in TOOLS.items()]
    return {
        "profile": PROFILE,
        "description": (
            "An agent that trains policies: it sees what can be learnt, starts and follows trainings, and reads what"
            " became of their policies. None of its tools moves traffic: that the deployer and people decide. Members"
            " of an input go into path and query as `calls` says, all others into the JSON body. `ratchet url` prints"
            " where the services are."
        ),
        "scopes": sorted({tool["calls"]["scope"] for tool in tools}),
        "tools": tools,
    }


def _tool(name: str, service: Interface, route: str, document: Schema) -> dict[str, Any]:
    verb, path = route.split()
    operation = document["paths"][path][verb.lower()]
    parameters = operation.get("parameters", [])
    (scope,) = operation["security"][0]["bearer"]
    calls: dict[str, Any] = {"service": service, "method": verb, "path": path, "scope": scope}
    for place in ("path", "query"):
        if names := [parameter["name"] for parameter in parameters if parameter["in"] == place]:
            calls[f"in_{place}"] = names
    return {
        "name": name,
        "description": " ".join(operation["description"].split()),
        "input_schema": _input(operation, document["components"]["schemas"]),
        "calls": calls,
    }


def _input(operation: Schema, schemas: Schema) -> dict[str, Any]:
    """One object of all parameters and of the body's members, which share no name, with all that it refers to."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = _resolved(content.get("schema", {}), schemas)
    parameters = operation.get("parameters", [])
    own = {each["name"]: each["schema"] | _described(each) for each in parameters}
    if shared := own.keys() & body.get("properties", {}).keys():
        raise ValueError(f"parameters and body share {shared}")
    required = [each["name"] for each in parameters if each.get("required")] + [*body.get("required", ())]
    made = {"type": "object", "properties": own | body.get("properties", {}), "additionalProperties": False}
    made |= {"required": required} if required else {}
    used: dict[str, Any] = {}
    _collect(made, schemas, used)
    made |= {"$defs": used} if used else {}
    return json.loads(json.dumps(made).replace(REFERENCE.format(name=""), DEFINITION.format(name="")))


def _resolved(schema: Schema, schemas: Schema) -> Schema:
    (name,) = _names(schema) if "$ref" in schema else (None,)
    return schema if name is None else schemas[name]


def _described(parameter: Schema) -> dict[str, str]:
    return {"description": parameter["description"]} if "description" in parameter else {}


def _collect(schema: object, schemas: Schema, used: dict[str, Any]) -> None:
    """Add to `used` what a schema refers to, directly or not."""
    for name in _names(schema):
        if name not in used:
            used[name] = schemas[name]
            _collect(schemas[name], schemas, used)


def _names(schema: object) -> Iterator[str]:
    yield from re.findall(re.escape(REFERENCE.format(name="")) + r"(\w+)", json.dumps(schema))


def _text(made: Mapping[str, Any]) -> str:
    """A line a tool: request schemas are long, and are edited elsewhere."""
    tools = ",\n".join(json.dumps(tool, ensure_ascii=False) for tool in made["tools"])
    head = json.dumps({**made, "tools": []}, ensure_ascii=False)
    return f"{head.removesuffix('[]}')}[\n{tools}\n]}}\n"


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    text = _text(profile())
    if "--check" not in arguments:
        FILE.write_text(text)
    elif not FILE.exists() or FILE.read_text() != text:
        sys.stderr.write("contracts/agent-profile.json is out of date: run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
