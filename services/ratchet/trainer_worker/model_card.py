"""The model card of a trained policy, in the Hub's format: metadata in YAML, then in Markdown what it was made from,
what was measured, and what it is not. Pure.

Its figures are those that were measured; emissions are none of them. No licence is known, so the metadata names none.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping

from ratchet.core.contract.policy_manifest import REWARD_MODEL, PolicyManifest
from ratchet.core.contract.training import EvaluationResults, HealthStop, ResourceUsage
from ratchet.core.rules.algorithms import unit_of
from ratchet.core.rules.figures import FIGURES

MARKDOWN = str.maketrans({sign: f"&#{ord(sign)};" for sign in "|`[]*"})
"""Signs with a meaning in Markdown, as HTML names them."""


def model_card(
    manifest: PolicyManifest,
    evaluation: EvaluationResults | None,
    usage: ResourceUsage | None,
    health_stop: HealthStop | None = None,
) -> str:
    """`manifest` as it will be stored, but for its documents; `usage` of the attempt that made the policy."""
    unit = unit_of(manifest.algorithm)
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
    title = f"{manifest.role}: {manifest.kind} by {manifest.algorithm or 'import'}"
    held_out = _held_out(evaluation)
    cost: dict[str, object] = {}
    if usage is not None:
        cost = {
            "wall time, s": usage.total_training_time_seconds,
            "GPU hours": usage.gpu_hours,
            "peak memory, GB": usage.peak_memory_gb,
            "cost, USD": usage.cost_usd,
        }
    lines = [*_metadata(manifest, held_out), "", f"# {_plain(title)}", "", *_rows(origin)]
    tables: dict[str, Iterator[str]] = {
        "Hyperparameters asked for": _rows(manifest.hyperparameters),
        "Last measurements in training": _figures(manifest.metrics),
        "On what was held out": _figures(held_out),
        "Cost of the attempt": _rows(cost),
    }
    for heading, rows in tables.items():
        if table := [*rows]:
            lines += ["", f"## {heading}", "", *table]
    lines += ["", "## Limits", ""]
    if health_stop is not None:
        lines.append(f"- The training was stopped before its last train step: {health_stop.message}.")
    if manifest.has_adapter:
        lines.append("- An adapter: it says nothing without the base model above, with exactly that digest.")
    if manifest.training_job_id is not None:
        lines.append(f"- Made for the role {_plain(manifest.role)} from what agents did there; nothing else was tried.")
    else:
        lines.append("- Made on one machine from files of its user; nothing else was tried.")
    if evaluation is None:
        lines.append("- Nothing was held out: the figures above are of the data that it learnt from.")
    if manifest.kind == REWARD_MODEL:
        lines.append("- It scores answers, and writes none: load it for sequence classification with one label.")
        lines.append("- Its rewards compare answers to one prompt; across prompts, and by themselves, they say little.")
        return "\n".join([*lines, ""])
    if manifest.training_job_id is not None:
        lines.append("- Whether it serves better than what served before is decided by its rollout, not by this card.")
    return "\n".join([*lines, ""])


def _metadata(manifest: PolicyManifest, held_out: Mapping[str, float]) -> Iterator[str]:
    adapter, scores = manifest.has_adapter, manifest.kind == REWARD_MODEL
    task = "text-classification" if scores else "text-generation"
    yield "---"
    yield f"library_name: {'peft' if adapter else 'transformers'}"
    yield f"base_model: {_quoted(manifest.base_model)}"
    yield f"base_model_relation: {'adapter' if adapter else 'finetune'}"
    yield f"pipeline_tag: {task}"
    yield "tags:"
    kinds = [*(["lora"] if adapter else []), *(["reward-model"] if scores else [])]
    for tag in ("ratchet", *kinds, manifest.algorithm or "import", f"role:{manifest.role}"):
        yield f"- {_quoted(tag)}"
    if manifest.dataset_digest is not None:
        yield f"dataset_digest: {_quoted(manifest.dataset_digest)}"
    finite = {name: value for name, value in held_out.items() if math.isfinite(value)}
    if finite:
        yield "model-index:"
        yield f"- name: {_quoted(manifest.role)}"
        yield "  results:"
        yield f"  - task: {{type: {task}}}"
        yield f"    dataset: {{name: held-out part of the data, type: {_quoted(manifest.dataset_digest or 'unknown')}}}"
        yield "    metrics:"
        for name, value in finite.items():
            yield f"    - {{type: {_quoted(name)}, value: {value!r}}}"
    yield "---"


def _held_out(evaluation: EvaluationResults | None) -> dict[str, float]:
    held_out = dict(evaluation.benchmark_scores or {}) if evaluation else {}
    if evaluation and evaluation.improvement_over_baseline is not None:
        held_out["improvement_over_baseline"] = evaluation.improvement_over_baseline
    return held_out


def _quoted(text: str) -> str:
    """A text as YAML reads it back, whatever it holds: JSON's escapes are YAML's, but for signs beyond 16 bits."""
    return "".join(char if ord(char) < 0x7F else f"\\U{ord(char):08X}" for char in json.dumps(text, ensure_ascii=False))


def _rows(values: Mapping[str, object]) -> Iterator[str]:
    """A table of two columns; no line where nothing is known."""
    known = {name: value for name, value in values.items() if value is not None}
    if known:
        yield from ("| | |", "| --- | --- |")
    for name, value in known.items():
        yield f"| {_plain(name)} | {_shown(value)} |"


def _figures(values: Mapping[str, float]) -> Iterator[str]:
    """A table of figures, each with what it is, what is good and what is bad."""
    if values:
        yield from ("| | | what it is |", "| --- | --- | --- |")
    for name, value in values.items():
        sentence = FIGURES[name].sentence if name in FIGURES else ""
        yield f"| {_plain(name)} | {_shown(value)} | {_plain(sentence)} |"


def _shown(value: object) -> str:
    return _plain(f"{value:.6g}" if isinstance(value, float) else str(value))


def _plain(text: str) -> str:
    """A text on one line that is shown as it is: neither Markdown nor HTML."""
    return html.escape(" ".join(text.split()), quote=False).translate(MARKDOWN)
