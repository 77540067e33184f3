"""Shows rollouts to people."""

from __future__ import annotations

from typing import Any

from ratchet.cli.output import print_table


def show(rollouts: list[dict[str, Any]]) -> None:
    """One line for each."""
    columns = ("role", "state", "from", "to", "stage", "weight", "verdict", "reason")
    print_table(columns, [_row(rollout) for rollout in rollouts], "no rollouts yet")


def _row(rollout: dict[str, Any]) -> tuple[object, ...]:
    stage = rollout.get("stage")
    index = stage.get("index") if isinstance(stage, dict) else stage  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    weight = stage.get("weight") if isinstance(stage, dict) else rollout.get("weight")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return (
        rollout.get("role"),
        rollout.get("state"),
        rollout.get("from_version"),
        rollout.get("to_version"),
        index,  # pyright: ignore[reportUnknownVariableType]
        weight,  # pyright: ignore[reportUnknownVariableType]
        rollout.get("verdict"),
        rollout.get("reason"),
    )
