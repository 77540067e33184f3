"""Evaluations of telemetry as feedback on the trajectory that they are about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from ratchet.core.contract import Feedback, encode, named_id
from ratchet.core.contract.spans import Evaluation, run_id
from ratchet.core.rules.recorded import turn_refs
from ratchet.dialects.telemetry.span_tree import Key, Tree
from ratchet.trajectory_collector.domain import TELEMETRY
from ratchet.trajectory_collector.traces.folding import Folded

MOST = 1000
"""Evaluations of one trace that count."""
_GOOD = frozenset({"pass", "passed", "true", "yes", "good", "correct", "positive", "thumbs_up"})
_BAD = frozenset({"fail", "failed", "false", "no", "bad", "incorrect", "negative", "thumbs_down"})


def judged(role: str, trace_id: str, tree: Tree, folded: Folded) -> Iterator[Feedback]:
    """The feedback that the evaluations of a trace are.

    A label that says pass or fail is a thumb, which rewards count; another score is a number, which they do not: what
    a high one means only its evaluator knows. The explanation is a comment. The same evaluation has the same id.
    """
    owner = {ref: made.trajectory_id for made in folded.assembled.trajectories for ref in turn_refs(made)}
    turns = _Turns(tree, folded.by_span)
    every = ((key, evaluation) for key, span in tree.spans.items() for evaluation in span.evaluations or ())
    for key, evaluation in islice(every, MOST):
        about = owner.get(turns.of(key, evaluation) or "", run_id(trace_id))
        identity = named_id("evaluation", role, trace_id, key[1], encode(evaluation).decode())
        label = (evaluation.label or "").strip().lower()
        if label in _GOOD | _BAD:
            yield _feedback(identity, role, about, evaluation, "thumbs", label in _GOOD)
        elif evaluation.value is not None:
            yield _feedback(identity, role, about, evaluation, "metric", evaluation.value)
        if evaluation.explanation:
            commented = named_id(identity, "comment")
            yield _feedback(commented, role, about, evaluation, "comment", evaluation.explanation)


def _feedback(
    identity: str, role: str, trajectory_id: str, evaluation: Evaluation, kind: str, value: float | bool | str
) -> Feedback:
    return Feedback(
        feedback_id=identity,
        trajectory_id=trajectory_id,
        kind=kind,
        at=evaluation.at,
        role=role,
        value=value,
        source=TELEMETRY,
        rater=evaluation.name,
    )


class _Turns:
    """Which turn an evaluation judges: the answer that it names, else the nearest call: its span, around it, in it."""

    def __init__(self, tree: Tree, by_span: Mapping[Key, str]) -> None:
        calls = {id(tree.spans[key]) for key in by_span}
        self._around = tree.enclosing(lambda span: id(span) in calls)
        self._at = by_span
        self._within: dict[Key, str] = {}
        self._by_answer: dict[str, str] = {}
        for call, ref in by_span.items():
            provider = tree.spans[call].provider
            if provider is not None and provider.id is not None:
                self._by_answer.setdefault(provider.id, ref)
            at: Key | None = call
            while at is not None and at not in self._within:
                self._within[at] = ref
                at = tree.parents.get(at)

    def of(self, key: Key, evaluation: Evaluation) -> str | None:
        """The turn; None where the trace has no call that it could be about."""
        around = self._around[key]
        nearest = self._at.get(key) or (self._at[around] if around is not None else self._within.get(key))
        return self._by_answer.get(evaluation.response_id or "") or nearest
