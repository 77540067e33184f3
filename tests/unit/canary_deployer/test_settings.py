"""The settings make the rules; contradicting ones are refused at the start."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from ratchet.canary_deployer.domain.rules import Budget
from ratchet.canary_deployer.settings import Settings


def test_lists_are_written_with_commas_or_as_json() -> None:
    for stages in ("10,25,50,100", "[10, 25, 50, 100]"):
        assert Settings(stages=stages).stage_weights == (0.1, 0.25, 0.5)


def test_one_value_holds_for_every_stage() -> None:
    rules = Settings(stages="25,50", stage_min_s="3", stage_min_trajectories="10,20").rules()
    assert [(s.weight, s.min_s, s.min_trajectories) for s in rules.stages] == [(0.25, 3, 10), (0.5, 3, 20)]


def test_a_deployment_names_the_kind_of_its_roles_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().platform_of("support") == "engine_local"
    monkeypatch.setenv("RATCHET_ENGINE_KIND", "vllm")
    assert Settings().platform_of("support") == "vllm"
    listed = [{"name": "small", "kind": "engine_local", "urls": ["http://a"], "roles": ["support"]}]
    monkeypatch.setenv("RATCHET_ENGINES", json.dumps(listed))
    assert [Settings().platform_of(role) for role in ("support", "sales")] == ["engine_local", "vllm"]


def test_defaults_are_the_documented_schedule() -> None:
    rules = Settings().rules()
    assert [(s.weight, s.min_s) for s in rules.stages] == [(0.1, 3600), (0.25, 3600), (0.5, 7200)]
    assert (rules.promotion_threshold, rules.margin, rules.min_coverage) == (20, 0.05, 0.8)
    assert rules.budget == Budget(evidence=0.025, complaints=0.005, first_call=0.01, run=0.005, safety=0.005)
    assert rules.budget.total == pytest.approx(0.05)
    assert rules.full_weight == 0.95


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stages", "50,25"),
        ("stages", "100"),
        ("stages", "0,50"),
        ("stage_min_s", "1,2"),
        ("metrics", "failure,taste"),
        ("strategy", "hope"),
        ("strategy", "immediate"),
        ("margin", 0.5),
        ("roles_kept_small", "Not a role!"),
        ("roles_that_lose_users", "Not a role!"),
    ],
)
def test_contradicting_settings_are_refused_at_the_start(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        Settings(**{name: value})


def test_without_a_soak_promotion_is_immediate() -> None:
    assert not Settings(soak_s=0).rules().soaks
    assert not replace(Settings().rules(), hold_back_weight=0).soaks
    assert Settings().rules().soaks


def test_keys_are_read_from_the_environment_and_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_ENGINE_API_KEY", "sk-engine")
    settings = Settings()
    assert settings.engine_api_key is not None
    assert settings.engine_api_key.get_secret_value() == "sk-engine"
    assert "sk-" not in repr(settings)
