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
    return "\n".join(
        [
            *_origin(manifest),
            *_table("Hyperparameters asked for", manifest.hyperparameters),
            *_table("Last measurements in training", manifest.metrics),
            *_evaluation(evaluation),
            *_limits(manifest, evaluation),
            "",
        ]
    )


def _origin(manifest: PolicyManifest) -> Iterator[str]:
    unit = UNITS.get(dataset_format(manifest.algorithm) or "", "trajectories")
    yield f"# {manifest.role}: {manifest.kind} by {manifest.algorithm or 'import'}"
    yield ""
    rows = {
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
    yield from _rows(rows)


def _table(title: str, values: Mapping[str, object]) -> Iterator[str]:
    if values:
        yield from ("", f"## {title}", "")
        yield from _rows(values)


def _evaluation(evaluation: EvaluationResults | None) -> Iterator[str]:
    if evaluation is not None:
        scores = dict(evaluation.benchmark_scores or {})
        if evaluation.improvement_over_baseline is not None:
            scores["improvement_over_baseline"] = evaluation.improvement_over_baseline
        yield from _table("On what was held out", scores)


def _limits(manifest: PolicyManifest, evaluation: EvaluationResults | None) -> Iterator[str]:
    yield from ("", "## Limits", "")
    if manifest.kind == ADAPTER:
        yield "- An adapter: it says nothing without the base model above, with exactly that digest."
    yield f"- Made for the role `{manifest.role}` from what agents did there; nothing else was tried."
    if evaluation is None:
        yield "- Nothing was held out: the figures above are of the data that it learnt from."
    yield "- Whether it serves better than what served before is decided by its rollout, not by this card."


def _rows(values: Mapping[str, object]) -> Iterator[str]:
    yield from ("| | |", "| --- | --- |")
    for name, value in values.items():
        if value is not None:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            yield f"| {name} | {shown.replace('|', chr(92) + '|')} |"
