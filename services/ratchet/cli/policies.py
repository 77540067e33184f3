"""Finds policies, walks their lineage and copies their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.cli.api import call, segment
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.output import Bar
from ratchet.cli.roles import require_role
from ratchet.errors import NotFound, Rejected
from ratchet.rules.arms import parse_model
from ratchet.stores.objects import Objects
from ratchet.stores.policies import read_policy
from ratchet.stores.policy_files import default_directory, export_policy, require_empty

Json = dict[str, Any]
"""A decoded answer."""


def read_roles(endpoints: Endpoints, role: str | None) -> Json:
    """`{"roles": [{role, route, policies}]}` of one role or of all. Raises `NotFound` for a role nothing knows."""
    if role is None:
        return call(endpoints, "deployer", "GET", "/v1/policies")
    return {"roles": [read_role(endpoints, role)]}


def read_role(endpoints: Endpoints, role: str) -> Json:
    """`{role, route, policies}`, without policies while the role has none. Raises `NotFound`."""
    try:
        return call(endpoints, "deployer", "GET", f"/v1/policies/{segment(role)}")
    except NotFound:
        require_role(endpoints, role)
        return {"role": role, "route": None, "policies": []}


def find_policy(endpoints: Endpoints, name: str) -> Json:
    """The policy that `support@3`, `support@3-1a2b3c4d` or `support` (what serves it) names. Raises `NotFound`."""
    try:
        wanted = parse_model(name)
    except ValueError as error:
        raise Rejected(str(error)) from error
    answer = read_role(endpoints, wanted.role)
    stable = (answer["route"] or {}).get("stable") or {}
    version = wanted.version if wanted.version is not None else stable.get("version")
    if version is None:
        raise NotFound(f"no policy serves {wanted.role} yet; name one: {wanted.role}@VERSION")
    for policy in answer["policies"]:
        if policy["version"] == version and policy["digest"].startswith(wanted.digest or ""):
            return policy
    raise NotFound(f"no such policy: {name}")


def export_target(endpoints: Endpoints, policy: Json) -> Path:
    """Where an export goes unless somebody says otherwise: by how the policy was made."""
    return default_directory(read_policy(Objects(endpoints.shared), policy["uri"], policy["digest"]), policy["name"])


def require_exportable(endpoints: Endpoints, policy: Json, target: Path) -> None:
    """Raise what an export would be refused with; nothing is written."""
    require_empty(target)
    read_policy(Objects(endpoints.shared), policy["uri"], policy["digest"])


def export(endpoints: Endpoints, policy: Json, target: Path, bar: Bar) -> list[str]:
    """The paths of the files written to `target`. Raises `Rejected` when there is something already."""
    objects = Objects(endpoints.shared)
    return export_policy(objects, policy["uri"], target, policy["digest"], bar)
