"""Shows policies and their lineage to people."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from ratchet.cli.output import console, follow_up, print_facts, print_table, when

Json = dict[str, Any]
"""A decoded answer."""

FACTS = (
    "name",
    "role",
    "version",
    "stage",
    "algorithm",
    "kind",
    "base_model",
    "digest",
    "uri",
    "final_reward",
    "reason",
)
SHOWN_IDS = 5
"""Of long lists of ids the first few are shown; `--json` has all."""


def show_list(roles: list[Json]) -> None:
    """One line for each policy."""
    columns = ("role", "policy", "stage", "algorithm", "kind", "samples", "created", "reason")
    rows = [
        (
            one["role"],
            one["name"],
            one["stage"],
            one.get("algorithm"),
            one["kind"],
            one.get("training_samples"),
            when(one["created_at"]),
            one.get("reason"),
        )
        for role in roles
        for one in role["policies"]
    ]
    print_table(columns, rows, "no policies yet")


def show_lineage(policy: Json, lineage: Json, directory: Path) -> None:
    """The policy, then each thing that it was made of."""
    print_facts({name: policy.get(name) for name in FACTS})
    for title, part in lineage.items():
        if title == "policy" or part in (None, [], {}):
            continue
        console.print(f"\n{title.replace('_', ' ')}", style="bold")
        print_facts(_short(part), indent=2)
    if policy.get("training_job_id"):
        job = follow_up("jobs", policy["training_job_id"], directory=directory)
        console.print(f"\n`{job}` shows its training", markup=False)


def _short(part: Any) -> Json:  # `Any`: one part of an answer
    """Facts of one part: long lists as their number and first few."""
    if isinstance(part, list):
        return _listed("", part)
    if not isinstance(part, dict):
        return {"": part}
    facts: Json = {}
    for name, value in cast("Json", part).items():
        facts |= _listed(name, value) if isinstance(value, list) else {name: value}
    return facts


def _listed(name: str, values: list[Any]) -> Json:
    if values and isinstance(values[0], dict):
        return {f"{name}[{place}]": value for place, value in enumerate(values[:SHOWN_IDS])} | _more(name, values)
    shown = ", ".join(map(str, values[:SHOWN_IDS]))
    return {name: f"{len(values)}: {shown}{', ...' if len(values) > SHOWN_IDS else ''}"} if values else {}


def _more(name: str, values: list[Any]) -> Json:
    left = len(values) - SHOWN_IDS
    return {f"{name}[...]": f"{left} more"} if left > 0 else {}
