"""Routes and weights as the configuration of a TensorZero gateway: policies are variants of a function per role. Pure.

A snapshot of one instant: TensorZero renews no lease, so an operator who serves a canary from this file moves its
weight, and takes it back, by hand. Source: TensorZero's configuration reference, experimentation `static_weights`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime

from ratchet.core.contract.state import Route, ServedPolicy
from ratchet.core.rules.arms import weight_at

FEEDBACK = {
    "ratchet_success": ("boolean", "`outcome.status` is success; feedback of kind thumbs"),
    "ratchet_rating": ("float", "feedback of kind rating, 0 to 5 stars"),
    "ratchet_reward": ("float", "`total_reward` of the newest revision, 0 to 1"),
}
"""Metrics of an episode, their type, and what they hold of ours. An episode is a trajectory; comments and corrections
are TensorZero's own `comment` and `demonstration`."""


def tensorzero_toml(routes: Sequence[Route], engine_url: str, at: datetime) -> str:
    """The file, for the routes as they are at an instant. Roles that nothing serves are left out."""
    served = [route for route in routes if route.stable is not None]
    metrics = [
        [f"# {meaning}", f"[metrics.{name}]", f'type = "{kind}"', 'level = "episode"', 'optimize = "max"']
        for name, (kind, meaning) in FEEDBACK.items()
    ]
    blocks = [*(block for route in served for block in _role(route, engine_url, at)), *metrics]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _role(route: Route, engine_url: str, at: datetime) -> Iterator[list[str]]:
    weights = shares(route, at)
    for policy, _ in weights:
        alias = _alias(route.role, policy)
        yield [f"[models.{alias}]", 'routing = ["engine"]']
        yield [
            f"[models.{alias}.providers.engine]",
            'type = "vllm"',
            f"model_name = {json.dumps(policy.name)}",
            f"api_base = {json.dumps(engine_url.rstrip('/') + '/v1/')}",
            'api_key_location = "none"',
        ]
    yield [f"[functions.{route.role}]", 'type = "chat"']
    for policy, _ in weights:
        alias = _alias(route.role, policy)
        yield [f"[functions.{route.role}.variants.{alias}]", 'type = "chat_completion"', f'model = "{alias}"']
    candidates = ", ".join(f"{_alias(route.role, policy)} = {weight:.6g}" for policy, weight in weights if weight > 0)
    stable = _alias(route.role, weights[0][0])
    yield [
        f"[functions.{route.role}.experimentation]",
        'type = "static_weights"',
        f"candidate_variants = {{ {candidates} }}",
        f'fallback_variants = ["{stable}"]',
    ]


def shares(route: Route, at: datetime) -> list[tuple[ServedPolicy, float]]:
    """The policies that serve a role and their shares of the traffic, stable first. Raises `ValueError` without one."""
    if route.stable is None:
        raise ValueError(f"no policy serves {route.role}")
    weight = weight_at(route.canary.schedule, at) if route.canary else 0.0
    if route.canary is None or weight == 0:
        return [(route.stable, 1.0)]
    return [(route.stable, 1.0 - weight), (route.canary.policy, weight)]


def _alias(role: str, policy: ServedPolicy) -> str:
    """A policy's name without the characters that a bare key cannot have."""
    return f"{role}_v{policy.version}_{policy.digest[:8]}"
