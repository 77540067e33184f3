"""A plan as a Mermaid flowchart: one node for each sub-task, with its worker, state and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ratchet.core.contract.workflows import Plan, SubTaskRun

LABEL_CHARACTERS = 60
"""Of a sub-task's instruction: a longer one makes boxes that no screen holds."""
COLOURS = {
    "succeeded": "fill:#d7f0dd,stroke:#2f7d46,color:#10331c",
    "failed": "fill:#f8d7d7,stroke:#a33333,color:#4a1212",
    "running": "fill:#d6e6fa,stroke:#2d62a3,color:#122c4d",
    "skipped": "fill:#eeeeee,stroke:#777777,color:#333333",
    "cancelled": "fill:#eeeeee,stroke:#777777,color:#333333",
}
"""By state; one that waits keeps Mermaid's own colours."""


class Standing(NamedTuple):
    """How a sub-task stands."""

    state: str
    worker: str | None = None
    run: SubTaskRun | None = None


def mermaid(plan: Plan, standings: Sequence[Standing]) -> str:
    """The flowchart as text; `standings` are those of the plan's sub-tasks, in its order."""
    lines = ["flowchart TD"]
    for index, (sub_task, standing) in enumerate(zip(plan.sub_tasks, standings, strict=True)):
        parts = [f"{index + 1}. {sub_task.task_type}", _escaped(_cut(sub_task.instruction)), _words(standing)]
        style = f":::{standing.state}" if standing.state in COLOURS else ""
        lines.append(f'  t{index}["{"<br/>".join(parts)}"]{style}')
    lines += [
        f"  t{before} --> t{index}"
        for index, sub_task in enumerate(plan.sub_tasks)
        for before in sorted(set(sub_task.depends_on))
    ]
    states = {standing.state for standing in standings}
    used = [state for state in COLOURS if state in states]
    return "\n".join(lines + [f"  classDef {state} {COLOURS[state]}" for state in used]) + "\n"


def _words(standing: Standing) -> str:
    state, worker, run = standing
    if worker is None or run is None:
        return state if worker is None else f"{worker}: {state}"
    chance = "" if run.propensity is None else f" (p {run.propensity:.2f})"
    return f"{worker}{chance}: {state}, ${run.cost_usd:.4f}, {run.latency_ms:.0f} ms"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LABEL_CHARACTERS else f"{line[: LABEL_CHARACTERS - 1]}…"


def _escaped(text: str) -> str:
    """`text` as a label shows it: what Mermaid or HTML would read as their own becomes the number of the character."""
    return "".join(each if each.isalnum() or each in " .,-_…" else f"#{ord(each)};" for each in text)
