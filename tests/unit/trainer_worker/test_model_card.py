"""The model card is one that the Hub's own library reads, whatever the names in it are."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from huggingface_hub import ModelCard

from ratchet.core.contract.policy_manifest import ADAPTER, MODEL, REWARD_MODEL, ArtifactFile, PolicyManifest
from ratchet.core.contract.training import EvaluationResults, ResourceUsage
from ratchet.trainer_worker.model_card import model_card

MADE_AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOSTILE = (
    "a: b\n---\n# forged",
    '"quoted" \\ and #commented',
    "| cell | <script>alert(1)</script> [link](http://x) `code`",
    "- item: {a: [b, *c, &d, !e, %f]}",
    "\x00\x1b\x7f\x85\u2028\ufeff \U0001f600",
    "null",
    "yes",
)


def manifest(**changes: Any) -> PolicyManifest:
    values = {"kind": ADAPTER, "base_model": "org/model-1b", "files": [], "role": "support", "created_at": MADE_AT}
    return PolicyManifest(**{**values, "algorithm": "dpo", "dataset_digest": "d" * 64, **changes})


def test_the_hub_reads_library_base_tags_and_what_was_measured() -> None:
    evaluation = EvaluationResults(benchmark_scores={"holdout_win_rate": 0.75}, improvement_over_baseline=0.25)
    text = model_card(manifest(parent="s3://b/policies/1.json"), evaluation, ResourceUsage(cost_usd=1.5, gpu_hours=0.5))
    data = ModelCard(text).data
    assert (data.library_name, data.base_model, data.pipeline_tag) == ("peft", "org/model-1b", "text-generation")
    assert data.tags == ["ratchet", "lora", "dpo", "role:support"]
    assert data.get("dataset_digest") == "d" * 64
    assert data.license is None
    assert data.eval_results is not None
    measured = {result.metric_type: result.metric_value for result in data.eval_results}
    assert measured == {"holdout_win_rate": 0.75, "improvement_over_baseline": 0.25}
    for fact in ("| continues | s3://b/policies/1.json |", "| cost, USD | 1.5 |", "| GPU hours | 0.5 |"):
        assert fact in text
    assert re.search(r"^\| holdout_win_rate \| 0.75 \| Share of held-out pairs .*; good: above 0.5", text, re.MULTILINE)
    assert "CO2" not in text


def test_model_is_no_adapter_and_without_a_measurement_card_claims_none() -> None:
    text = model_card(manifest(kind=MODEL), None, None)
    data = ModelCard(text).data
    assert (data.library_name, data.eval_results) == ("transformers", None)
    assert "lora" not in (data.tags or [])
    assert "Cost of the attempt" not in text


def test_the_card_of_a_reward_model_is_of_one_and_speaks_of_no_rollout() -> None:
    files = [ArtifactFile(name="adapter_config.json", uri="s3://b/1", sha256="0" * 64, size=2)]
    scores = EvaluationResults(benchmark_scores={"holdout_auc": 0.75})
    text = model_card(manifest(kind=REWARD_MODEL, algorithm="reward_model", files=files), scores, None)
    data = ModelCard(text).data
    assert (data.library_name, data.pipeline_tag) == ("peft", "text-classification")
    assert data.tags == ["ratchet", "lora", "reward-model", "reward_model", "role:support"]
    assert data.eval_results is not None
    assert [(one.task_type, one.metric_type) for one in data.eval_results] == [("text-classification", "holdout_auc")]
    assert "It scores answers, and writes none" in text
    assert "rollout" not in text
    whole = model_card(manifest(kind=REWARD_MODEL, algorithm="reward_model"), None, None)
    assert ModelCard(whole).data.library_name == "transformers"


def test_a_figure_that_is_none_is_left_out_of_the_metadata() -> None:
    scores = {"holdout_win_rate": float("nan"), "accuracy": 0.5}
    results = ModelCard(model_card(manifest(), EvaluationResults(benchmark_scores=scores), None)).data.eval_results
    assert results is not None
    assert [result.metric_type for result in results] == ["accuracy"]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_names(name: str) -> None:
    evaluation = EvaluationResults(benchmark_scores={name: 0.5})
    hostile = manifest(base_model=name, role=name, hyperparameters={name: name}, metrics={name: 1.0})
    card = ModelCard(model_card(hostile, evaluation, None))
    assert card.data.base_model == name
    assert card.data.tags == ["ratchet", "lora", "dpo", f"role:{name}"]
    assert card.data.eval_results is not None
    assert card.data.eval_results[0].metric_type == name
    headings = [line for line in card.text.splitlines() if line.startswith("# ")]
    assert len(headings) == 1
    assert "<script>" not in card.text
    assert "](http" not in card.text
