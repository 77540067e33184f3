"""Shows policies to people."""

from __future__ import annotations

from typing import Any

from ratchet.cli.output import print_table, when

Json = dict[str, Any]
"""A decoded answer."""


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
