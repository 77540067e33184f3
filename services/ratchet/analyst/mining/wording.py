"""What a finding says to people: a statement with its numbers, and what to do about it.

A statement names values, which anybody may have written: cleaned and shortened once more, in quotes. Advice holds
nothing of them: a plan may write it into the instructions of a policy, which would obey what stands there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.analyst.mining.base import Finding, Hypothesis
from ratchet.analyst.mining.calls import BEHAVIORS
from ratchet.analyst.mining.texts import name_of, one_line
from ratchet.core.contract.learning import LONGEST_STATEMENT, Trigger

LONGEST_VALUE = 48
MOST_TERMS = 3
_WHICH: Mapping[str, str] = {
    "task_type": "of the task type {}",
    "domain": "of the domain {}",
    "language": "in the language {}",
    "model": "answered by the model {}",
    "version": "answered by version {}",
    "agent": "of the agent {}",
    "hour": "begun in the hour {} UTC",
    "length": "with a question of {}",
    "term": "asked with the word {}",
    "document": "that retrieve {}",
    "offered": "offered the tool {}",
    "tool": "that call {}",
    "tool_sequence": "that call {}",
    "tool_error": "with the tool error {}",
    "component": "with the reward component {}",
}
"""Attribute -> which trajectories a trigger is about."""
MORE: Mapping[str, str] = {
    "failure": "fail {} percentage points {more} often",
    "reward": "have a reward that is {} {higher}",
    "cost_usd": "cost {} USD {more} each",
    "latency_ms": "take {} ms {longer}",
    "tokens": "take {} tokens {more}",
    "calls": "take {} model calls {more}",
    "answer_chars": "are answered by {} characters {more}",
    "inputs": "look {} percentage points {more} like the later window",
    "feedback": "get feedback {} percentage points {more} often",
    "share": "do so {} percentage points {more} often",
}
_WORDS = {"more": ("more", "less"), "higher": ("higher", "lower"), "longer": ("longer", "shorter")}
_PERCENT = frozenset({"failure", "inputs", "feedback", "share"})
"""Measures that are shares."""


@dataclass(frozen=True, slots=True)
class Wording:
    statement: str
    focus_area: str
    action: str
    """What is recommended: one of `CHANGES`."""
    advice: str
    """Of a `bundle` an instruction to the policy, else to people."""


_CHECK = "Check that everything the request depends on holds before you act, and say so where it does not."
_ADVICE: Mapping[str, tuple[str, str, str]] = {
    "failure_cluster": ("decision_making", "bundle", _CHECK),
    "repeated_calls": (
        "task_execution_efficiency",
        "bundle",
        "Do not call a tool again with the same arguments: use the result that you have.",
    ),
    "call_loop": (
        "task_execution_efficiency",
        "bundle",
        "When your calls begin to repeat, stop: use the results that you have, or ask the user.",
    ),
    "retries": ("error_handling", "bundle", "When a tool fails, read its error and change the call before you retry."),
    "early_quit": ("error_handling", "bundle", "When a tool fails, try another way before you answer."),
    "no_tool_called": ("decision_making", "bundle", "Use the tools that you have before you answer."),
    "ended_on_call": ("agent_behavior", "bundle", "Always end with an answer to the user."),
    "tool_never_used": (
        "resource_utilization",
        "note",
        "Describe the tool so that the policy knows when it helps, or no longer offer it.",
    ),
    "longer_answers": (
        "communication_patterns",
        "note",
        "Read some of the longest answers: where length pays but does not help, give it no weight in the reward.",
    ),
    "component_diverged": (
        "performance",
        "reward_weight",
        "Read the evidence: where this component rewards what does not help, lower its weight.",
    ),
    "component_fell": (
        "performance",
        "note",
        "Read trajectories that this component scores low and the others high: what do the others pay for that it does"
        " not see?",
    ),
    "shorter_answers": (
        "communication_patterns",
        "note",
        "Read some of the shortest answers: where they leave out what users need, find what pays for it.",
    ),
    "calls_fell": (
        "task_execution_efficiency",
        "note",
        "Look which calls the evidence leaves out, and whether its answers are right without them.",
    ),
    "policies_differ": (
        "performance",
        "note",
        "Compare answers of this version with those of the others, and keep the better one for these tasks.",
    ),
    "inputs_shifted": (
        "performance",
        "held_out_tasks",
        "Add tasks like the new ones to the held-out set: the gates do not know them.",
    ),
    "feedback_dried_up": (
        "communication_patterns",
        "note",
        "Look whether the widget or the import that feedback comes by still works: rewards rest on less and less.",
    ),
    "failures_rose": ("performance", "training", "Train on the newest trajectories."),
    "reward_fell": ("performance", "training", "Train on the newest trajectories."),
    "cost_rose": ("resource_utilization", "note", "Look what the expensive trajectories call, and how often."),
    "tokens_rose": ("resource_utilization", "note", "Look what makes prompts and answers of the evidence so long."),
    "latency_rose": ("task_execution_efficiency", "note", "Look which calls the evidence waits for."),
    "calls_rose": ("task_execution_efficiency", "note", "Look which calls of the evidence could be spared."),
}
"""Finding -> focus area, action, advice."""
_OUTSIDE = frozenset({"model", "version", "agent", "hour", "document"})
"""Attributes that no instruction changes."""
_OF_MEASURE: Mapping[str, tuple[str, str]] = {
    "cost_usd": ("resource_utilization", "Look what these trajectories pay for, and whether they need it."),
    "latency_ms": ("task_execution_efficiency", "Look which calls these trajectories wait for."),
}
"""Focus area and advice of associations with what no instruction is known to change."""


def worded(finding: Finding) -> Wording:
    """Of any finding; what is too long ends with `…`."""
    area, action, advice = advised(finding.hypothesis)
    return Wording(one_line(_stated(finding), LONGEST_STATEMENT), area, action, advice)


def advised(claim: Hypothesis) -> tuple[str, str, str]:
    """Focus area, action and advice."""
    known = _ADVICE.get(claim.finding)
    if known is not None:
        return known
    if claim.measure in _OF_MEASURE:
        area, advice = _OF_MEASURE[claim.measure]
        return area, "note", advice
    attributes = {trigger.attribute for trigger in claim.triggers}
    if attributes & _OUTSIDE:
        return "performance", "note", "Compare the evidence with other trajectories: no instruction changes this."
    if "tool_error" in attributes:
        return "error_handling", "bundle", "When a tool fails, read its error and change the call before you retry."
    return "agent_behavior", "bundle", _CHECK


def _stated(finding: Finding) -> str:
    claim = finding.hypothesis
    window = "than in the window before" if claim.between_windows else "than the others"
    interval = f"95 % interval {_number(finding.low, claim)} to {_number(finding.high, claim)}"
    if claim.rare is not None:
        share = f"{_number(finding.effect, claim)} % ({interval} %)"
        tool = _quoted(claim.triggers[0].value) if claim.triggers else "A tool"
        return f"{tool} is offered in {_count(finding.count)}, and called in {share}."
    if claim.finding == "component_diverged":
        moved = f"{_number(finding.effect, claim)} against the others since the window before ({interval})"
        return f"The reward component {_quoted(claim.triggers[0].value if claim.triggers else '')} rose by {moved}."
    size = _number(abs(finding.effect), claim)
    signs = {name: words[finding.effect < 0] for name, words in _WORDS.items()}
    differ = MORE.get(claim.measure, "differ by {}").format(size, **signs)
    beside = "; no rise of the reward is shown" if claim.finding == "longer_answers" else ""
    typical = [name for term in claim.terms[:MOST_TERMS] if (name := _quoted(term))]
    terms = f" Typical: {', '.join(typical)}." if typical else ""
    return (
        f"{_subject(claim)} {differ} {window}{beside} ({interval}); {_count(finding.count)},"
        f" {_percent(finding.share)} % of the window.{terms}"
    )


def _subject(claim: Hypothesis) -> str:
    which = [_which(trigger) for trigger in claim.triggers]
    return f"Trajectories {' and '.join(which)}" if which else "Trajectories"


def _which(trigger: Trigger) -> str:
    if trigger.attribute == "behavior" and trigger.value in BEHAVIORS:
        return f"that {BEHAVIORS[trigger.value]}"
    return _WHICH.get(trigger.attribute, "with {}").format(_quoted(trigger.value))


def _quoted(value: str) -> str:
    """A value that anybody may have written."""
    shown = one_line(name_of(value), LONGEST_VALUE).replace('"', "'")
    return f'"{shown}"'


def _count(count: int) -> str:
    return f"{count:,} {'trajectory' if count == 1 else 'trajectories'}"


def _number(value: float, claim: Hypothesis) -> str:
    return _percent(value) if claim.measure in _PERCENT else _figure(value)


def _percent(share: float) -> str:
    return _figure(100 * share)


def _figure(value: float) -> str:
    """Three digits, without an exponent where people write none."""
    if not math.isfinite(value):
        return "unknown"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.3g}"
