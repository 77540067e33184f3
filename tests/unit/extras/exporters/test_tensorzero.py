"""Routes as the configuration of a TensorZero gateway."""

from __future__ import annotations

import tomllib
from datetime import timedelta

import pytest

from ratchet.core.contract.state import CanaryRoute, Route, ServedPolicy, WeightStep
from ratchet.extras.exporters.tensorzero import tensorzero_toml
from tests.support.messages import AT

STABLE, CANARY = (ServedPolicy(version=n, name=f"support@{n}-{str(n) * 8}", digest=str(n) * 64) for n in (3, 4))


def route(weight: float | None) -> Route:
    if weight is None:
        return Route(role="support", stable=STABLE)
    steps = [WeightStep(at=AT, weight=weight), WeightStep(at=AT + timedelta(hours=1), weight=0.9)]
    canary = CanaryRoute(rollout_id="r", policy=CANARY, salt="salt", schedule=steps, lease=7)
    return Route(role="support", stable=STABLE, canary=canary)


@pytest.mark.parametrize(
    ("weight", "candidates"),
    [
        (None, {"support_v3_33333333": 1.0}),
        (0.1, {"support_v3_33333333": 0.9, "support_v4_44444444": 0.1}),
        (1.0, {"support_v4_44444444": 1.0}),
        (0.0, {"support_v3_33333333": 1.0}),
    ],
)
def test_the_weights_in_force_become_shares_of_variants(weight: float | None, candidates: dict[str, float]) -> None:
    text = tensorzero_toml([route(weight)], "http://127.0.0.1:8082", AT + timedelta(minutes=1))
    function = tomllib.loads(text)["functions"]["support"]
    assert function["experimentation"]["candidate_variants"] == pytest.approx(candidates)
    assert function["experimentation"]["fallback_variants"] == ["support_v3_33333333"]
    assert set(candidates) <= set(function["variants"])


def test_a_policy_is_a_model_of_the_engine_under_its_immutable_name() -> None:
    made = tomllib.loads(tensorzero_toml([route(None)], "http://127.0.0.1:8082/", AT))
    provider = made["models"]["support_v3_33333333"]["providers"]["engine"]
    assert (provider["type"], provider["model_name"]) == ("vllm", STABLE.name)
    assert provider["api_base"] == "http://127.0.0.1:8082/v1/"
    assert {name: metric["level"] for name, metric in made["metrics"].items()} == {
        "ratchet_success": "episode",
        "ratchet_rating": "episode",
        "ratchet_reward": "episode",
    }


def test_a_role_that_nothing_serves_is_left_out() -> None:
    assert "functions" not in tomllib.loads(tensorzero_toml([Route(role="new")], "http://127.0.0.1:8082", AT))
