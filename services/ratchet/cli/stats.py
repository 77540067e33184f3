"""`ratchet stats`: what trajectories and their calls were like, in numbers, by what they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from ratchet.cli.api import require_role
from ratchet.cli.connections import ask_warehouse
from ratchet.cli.endpoints import locate
from ratchet.cli.filters import Filters, takes_filters
from ratchet.cli.options import HERE, AsJson, Directory, Since, since_of
from ratchet.cli.output import console, print_answer, print_table
from ratchet.core.contract.http.statistics import GroupOut, MeasuresOut, PointOut, StatisticsOut
from ratchet.core.stores.statistics import DIMENSIONS, WIDTHS, Every, StatisticsQuery, statistics

app = typer.Typer()

SIGNS = "▁▂▃▄▅▆▇█"
SIGNS_OF_A_TREND = 24
"""At most: neighbouring buckets are one sign."""
FIGURES = ("trajectories", "success", "reward", "calls", "failed", "prompt", "completion", "cost $", "unpriced",
           "p50 ms", "p95 ms")  # fmt: skip
"""Of `MeasuresOut` what a line has room for; `--json` has all of it."""


@app.command()
@takes_filters
def stats(
    filters: Filters,
    by: Annotated[
        str, typer.Option(metavar="NAME[,NAME]", help=f"What to group by, one or two of {', '.join(DIMENSIONS)}.")
    ] = "",
    since: Since = "7d",
    every: Annotated[
        Every | None, typer.Option(help="A line for each hour, day or week, in UTC, in place of one in all.")
    ] = None,
    api: Annotated[str | None, typer.Option(help="Only of calls of this API: chat, responses, messages.")] = None,
    key: Annotated[str | None, typer.Option(help="Only of calls with the key of this id.")] = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Counts, outcomes, mean reward, tokens, cost and latency, by agent, domain, model, policy and more, over time.

    Trajectories count when they ended, calls when they were made. `±` is half of the 95 % interval of the mean, as if
    trajectories were independent. Cost is that of calls with a price (RATCHET_GATEWAY_ENGINE_PRICE, and `prices` of an
    upstream); `unpriced` counts the others. Version 0 of a role is an upstream's model.
    """
    endpoints = locate(directory)
    given = {**filters.only, "api": api, "key": key}
    asked = StatisticsQuery(
        since=since_of(since),
        until=filters.until or datetime.now(UTC),
        every=every,
        by=by.split(",") if by else (),
        only={name: str(value) for name, value in given.items() if value is not None},
        evaluation=filters.evaluation,
    )
    made = ask_warehouse(endpoints, lambda warehouse: statistics(warehouse, asked), filters.role)
    if not made.total.points and filters.role is not None:
        require_role(endpoints, filters.role)
    print_answer(made, as_json, lambda: show(made, over_time=every is not None))


def show(made: StatisticsOut, *, over_time: bool) -> None:
    """A table: a line for each group, or for each group in each bucket of time."""
    empty = "nothing in this time" if made.evaluation else "nothing in this time, evaluations apart"
    groups = [*made.groups, *([made.other] if made.other else [])] if made.by else [made.total]
    groups = [group for group in groups if group.points]
    if over_time:
        columns = (f"{made.every} (UTC)", *made.by, *FIGURES)
        form = "%Y-%m-%d %H:%M" if made.every == "hour" else "%Y-%m-%d"
        points = sorted(((point, group) for group in groups for point in group.points), key=lambda pair: pair[0].at)
        rows = [(f"{point.at:{form}}", *_names(made, group), *_figures(point)) for point, group in points]
        print_table(columns, rows, empty)
    else:
        columns = (*made.by, *FIGURES, f"reward by {made.every}")
        rows = [(*_names(made, group), *_figures(group), trend(made, group.points)) for group in groups]
        print_table(columns, rows, empty)
    if made.others:
        console.print(f"the {made.others:,} groups with the fewest trajectories are one line", style="dim")


def _names(made: StatisticsOut, group: GroupOut) -> tuple[str, ...]:
    """A name for each column."""
    if group is made.other:
        return ("(others)", *["" for _ in made.by[1:]])
    return tuple(name or "-" for name in group.names)


def _figures(of: MeasuresOut) -> tuple[object, ...]:
    """The cells of `FIGURES`."""
    half = f" ± {of.reward_interval[1] - (of.mean_reward or 0):.3f}" if of.reward_interval else ""
    return (
        of.trajectories,
        None if of.success_share is None else f"{100 * of.success_share:.1f} %",
        None if of.mean_reward is None else f"{of.mean_reward:.3f}{half}",
        of.calls,
        of.errors,
        of.prompt_tokens,
        of.completion_tokens,
        None if of.unpriced == of.calls else f"{of.cost_usd:.4f}",
        of.unpriced,
        *(of.latency_ms or (None, None))[:2],
    )


def trend(made: StatisticsOut, points: Sequence[PointOut]) -> str:
    """The mean reward from the window's beginning to its end, as signs between its least and its largest mean.

    A point stands for a time without a reward.
    """
    first, width = min((point.at for point in made.total.points), default=made.since), WIDTHS[made.every]
    buckets = -((first - made.until) // width)
    merged = -(-buckets // SIGNS_OF_A_TREND)
    sums: dict[int, tuple[float, int]] = {}
    for point in points:
        if point.mean_reward is not None:
            place = (point.at - first) // width // merged
            total, count = sums.get(place, (0.0, 0))
            sums[place] = (total + point.mean_reward * point.rewarded, count + point.rewarded)
    means = {place: total / count for place, (total, count) in sums.items()}
    low, high = min(means.values(), default=0.0), max(means.values(), default=0.0)
    step = (high - low) / (len(SIGNS) - 1) or 1.0
    signs = (
        SIGNS[round((means[place] - low) / step)] if place in means else "·" for place in range(-(-buckets // merged))
    )
    return "".join(signs)
