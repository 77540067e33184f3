"""Shows rollouts to people."""

from __future__ import annotations

from typing import Any

from ratchet.cli.output import console, print_facts, print_table, when

Rollout = dict[str, Any]
"""A rollout as the deployer describes it."""


def show(rollouts: list[Rollout]) -> None:
    """One line for each."""
    columns = ("role", "state", "candidate", "compared with", "stage", "weight", "reason")
    print_table(columns, [_row(rollout) for rollout in rollouts], "no rollouts yet")


def show_one(rollout: Rollout) -> None:
    """A rollout with its evidence."""
    show([rollout])
    expected = rollout.get("forecast")
    if expected:
        stages = ", ".join(f"{days:g}" for days in expected["expected_days_by_stage"])
        rate, total = expected["trajectories_per_day"], expected["expected_days"]
        line = (
            f"expected: {total:g} days for a policy equal to stable, at {rate:g} trajectories a day ({stages} by stage)"
        )
        console.print(line, markup=False)
    horizon = rollout.get("horizon")
    if horizon:
        line = f"horizon: an outcome that has not come after {horizon['seconds']:g} s is missing ({horizon['basis']})"
        console.print(line, markup=False)
    if rollout.get("parked"):
        console.print(f"the queue is parked: `ratchet rollout resume {rollout['role']}` lets it go on", markup=False)
    _section(("gate", "outcome", "reason"), [(one["gate"], one["outcome"], one["reason"]) for one in rollout["gates"]])
    arms = {name: arm for name, arm in rollout["arms"].items() if isinstance(arm, dict)}
    measured = list(next(iter(arms.values()), {}))
    _section(("arm", *measured), [(name, *(arm.get(one) for one in measured)) for name, arm in arms.items()])
    found = [(test, name, value) for test, values in rollout["e_values"].items() for name, value in values.items()]
    _section(("test", "metric", "e-value"), found)
    console.print(f"thresholds: {', '.join(f'{name} {value:g}' for name, value in rollout['thresholds'].items())}")
    for reason in rollout["waiting_for"]:
        console.print(f"waiting for {reason}", markup=False)


def show_audit(found: dict[str, Any]) -> None:
    """Whether the log is whole; the first break, when it is not."""
    since = f" since {when(found['since']):%Y-%m-%d %H:%M:%S %Z}" if found["since"] else ""
    older = "" if found["complete"] else "; older ones have left the stream"
    counted = f"{found['decisions']} decisions about {found['role']}{since}{older}"
    if found["whole"]:
        console.print(f"{counted}: the log is whole", markup=False)
        return
    console.print(f"{counted}: {found['problem']}", markup=False)
    broken = found["first_break"]
    if broken is not None:
        print_facts(broken)


def _row(rollout: Rollout) -> tuple[object, ...]:
    names = [(rollout.get(which) or {}).get("name") for which in ("candidate", "stable")]
    has_traffic = rollout["weight"] > 0
    return (
        rollout["role"],
        rollout["state"],
        *names,
        rollout["stage"] if has_traffic else None,
        rollout["weight"] if has_traffic else None,
        rollout.get("fault") or rollout["reason"],
    )


def _section(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    if rows:
        console.print()
        print_table(columns, rows, "")
