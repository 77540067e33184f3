"""A plan as a Mermaid flowchart: one node for each sub-task, with its worker, state and cost."""

from __future__ import annotations

from collections.abc import Sequence

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


def mermaid(plan: Plan, states: Sequence[str], runs: Sequence[SubTaskRun | None]) -> str:
    """The flowchart as text; `states` and `runs` are those of the plan's sub-tasks, in its order."""
    lines = ["flowchart TD"]
    for index, (sub_task, state, run) in enumerate(zip(plan.sub_tasks, states, runs, strict=True)):
        parts = [f"{index + 1}. {sub_task.task_type}", _escaped(_cut(sub_task.instruction)), _standing(state, run)]
        style = f":::{state}" if state in COLOURS else ""
        lines.append(f'  t{index}["{"<br/>".join(parts)}"]{style}')
    lines += [
        f"  t{before} --> t{index}"
        for index, sub_task in enumerate(plan.sub_tasks)
        for before in sorted(set(sub_task.depends_on))
    ]
    used = [state for state in COLOURS if state in states]
    return "\n".join(lines + [f"  classDef {state} {COLOURS[state]}" for state in used]) + "\n"


def _standing(state: str, run: SubTaskRun | None) -> str:
    if run is None or run.worker is None:
        return state
    chance = "" if run.propensity is None else f" (p {run.propensity:.2f})"
    return f"{run.worker}{chance}: {state}, ${run.cost_usd:.4f}, {run.latency_ms:.0f} ms"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LABEL_CHARACTERS else f"{line[: LABEL_CHARACTERS - 1]}…"


def _escaped(text: str) -> str:
    """`text` as a label shows it: what Mermaid or HTML would read as their own becomes the number of the character."""
    return "".join(each if each.isalnum() or each in " .,-_…" else f"#{ord(each)};" for each in text)
