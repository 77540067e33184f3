"""The model card of a trained policy, in Markdown: what it was made from, what was measured, what it is not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ratchet.contract.policy_manifest import ADAPTER, PolicyManifest
from ratchet.contract.snapshot import LABELS, PAIRS
from ratchet.contract.training import EvaluationResults
from ratchet.rules.algorithms import dataset_format

UNITS = {PAIRS: "preference pairs", LABELS: "labelled answers"}
"""What a training counts, by the format of its dataset; trajectories otherwise."""


def model_card(manifest: PolicyManifest, evaluation: EvaluationResults | None) -> str:
    """`manifest` as it will be stored, but for its documents."""
    unit = UNITS.get(dataset_format(manifest.algorithm) or "", "trajectories")
    origin = {
        "base model": manifest.base_model,
        "base digest": manifest.base_digest,
        "continues": manifest.parent,
        "data digest": manifest.dataset_digest,
        f"{unit} learnt from": manifest.training_samples,
        "mean reward of the data": manifest.final_reward,
        "training job": manifest.training_job_id,
        "attempt": manifest.attempt,
        "made at": manifest.created_at.isoformat(),
        "tokenizer digest": manifest.tokenizer_digest,
        "licence": "none given; that of the base model and of the data still hold",
    }
    lines = [f"# {manifest.role}: {manifest.kind} by {manifest.algorithm or 'import'}", "", *_rows(origin)]
    held_out = dict(evaluation.benchmark_scores or {}) if evaluation else {}
    if evaluation and evaluation.improvement_over_baseline is not None:
        held_out["improvement_over_baseline"] = evaluation.improvement_over_baseline
    tables: dict[str, Mapping[str, object]] = {
        "Hyperparameters asked for": manifest.hyperparameters,
        "Last measurements in training": manifest.metrics,
        "On what was held out": held_out,
    }
    for title, values in tables.items():
        if values:
            lines += ["", f"## {title}", "", *_rows(values)]
    lines += ["", "## Limits", ""]
    if manifest.kind == ADAPTER:
        lines.append("- An adapter: it says nothing without the base model above, with exactly that digest.")
    lines.append(f"- Made for the role `{manifest.role}` from what agents did there; nothing else was tried.")
    if evaluation is None:
        lines.append("- Nothing was held out: the figures above are of the data that it learnt from.")
    lines.append("- Whether it serves better than what served before is decided by its rollout, not by this card.")
    return "\n".join([*lines, ""])


def _rows(values: Mapping[str, object]) -> Iterator[str]:
    yield from ("| | |", "| --- | --- |")
    for name, value in values.items():
        if value is not None:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            yield f"| {name} | {shown.replace('|', chr(92) + '|')} |"
