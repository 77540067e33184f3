"""The options that choose data, for every command that asks for some: stated once, as `dataset_of` takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import typer

from ratchet.cli.options import with_options
from ratchet.core.contract.training import SnapshotRef
from ratchet.core.datasets.domain.selection import HELD_OUT
from ratchet.core.stores.policies import digest_in


def dataset_of(
    samples: Annotated[
        int, typer.Option(min=1, help="Maximum number of trajectories, pairs or answers with a thumb.")
    ] = 1000,
    min_rows: Annotated[
        int | None, typer.Option(min=1, help="Refuse a job that has fewer; the algorithm's own least stays.")
    ] = None,
    min_reward: Annotated[float | None, typer.Option(help="Only trajectories with at least this reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Only trajectories with at most this reward.")] = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Only trajectories with at most so many turns.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Only this source, repeatable: import:tau-bench.")] = None,
    domain: Annotated[list[str] | None, typer.Option(help="Only this domain, repeatable.")] = None,
    exclude_profile: Annotated[list[str] | None, typer.Option(help="Without this profile, repeatable.")] = None,
    max_staleness: Annotated[
        int | None, typer.Option(min=0, help="Only of policies so many generations away from the one that is trained.")
    ] = None,
    balance_domains: Annotated[bool, typer.Option(help="An equal share of the rows for every domain.")] = False,
    min_margin: Annotated[
        float | None, typer.Option(min=0, max=1, help="Only pairs whose answers are at least so far apart.")
    ] = None,
    min_human_share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Least share of pairs by people; of the others fewer are taken.")
    ] = None,
    exclude_rater: Annotated[
        list[str] | None, typer.Option(help="Without this rater's opinions, repeatable: NAME or SOURCE/NAME.")
    ] = None,
    held_out: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of the tasks that does not train, for `ratchet export tasks`.")
    ] = HELD_OUT,
    since: Annotated[datetime | None, typer.Option(help="Only from this instant on.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only before this instant.")] = None,
) -> dict[str, object]:
    """The `dataset` of a request; what was not asked for is left out. Raises `typer.BadParameter`."""
    for option, bound in (("--min-reward", min_reward), ("--max-reward", max_reward)):
        if bound is not None and not math.isfinite(bound):  # JSON has no such number: the filter would go missing
            raise typer.BadParameter(f"{option} is a finite number, not {bound}")
    dates = {"start": since, "end": until}  # without a zone: this machine's time
    chosen = {
        "min_reward": min_reward,
        "max_reward": max_reward,
        "max_trajectory_length": max_length,
        "sources": source or None,
        "task_domains": domain or None,
        "exclude_subordinate_profiles": exclude_profile or None,
        "max_staleness": max_staleness,
        "balance_domains": balance_domains or None,
        "min_margin": min_margin,
        "min_human_share": min_human_share,
        "excluded_raters": exclude_rater or None,
        "held_out": held_out,
        "date_range": {name: at.astimezone().isoformat() for name, at in dates.items() if at is not None} or None,
    }
    asked = {"filter": {name: value for name, value in chosen.items() if value is not None}, "min_rows": min_rows}
    return {"sample_size": samples, **{name: value for name, value in asked.items() if value}}


takes_data = with_options("dataset", dataset_of)
"""A command that has the options of `dataset_of` in the place of its parameter `dataset`, which gets the result."""


def asked_filter(dataset: Mapping[str, object]) -> dict[str, object]:
    """What `dataset_of` made, without a filter that was not asked for: a snapshot is selected already."""
    return {name: value for name, value in dataset.items() if (name, value) != ("filter", {"held_out": HELD_OUT})}


def snapshot_of(uri: str) -> SnapshotRef:
    """The snapshot behind a manifest's uri, which holds its digest. Raises `typer.BadParameter` for any other text."""
    digest = digest_in(uri)
    if not uri.startswith("s3://") or not uri.endswith(".json") or digest is None:
        form = "s3://<bucket>/snapshots/<sha256>.json"
        raise typer.BadParameter(f"{uri} is not the uri of a snapshot's manifest, {form}")
    return SnapshotRef(uri=uri, digest=digest)
