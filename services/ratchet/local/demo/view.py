"""Draws the loop: what each station has done, which one is at work, the policies, the canary's evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.local.demo.exams import Proportion
from ratchet.local.demo.observer import Picture
from ratchet.local.demo.progress import (
    AGENTS,
    CANARY,
    COLLECTOR,
    GATE,
    GATEWAY,
    REWARDS,
    SNAPSHOT,
    TRAINER,
    Progress,
    clock_text,
)
from ratchet_helpdesk.heldout import GREEDY, SAMPLED

WIDTH = 96
"""Columns the picture takes; narrower terminals get plain lines."""
STATION_WIDTH = 20
Station = tuple[str, list[RenderableType]]
"""Its name, and its two lines."""
BAR_WIDTH, BAR = 18, 8
"""Bars that fill a station, and those in tables."""
NOTES = 5

STAGE_STYLES = {
    "stable": "bold green",
    "canary": "bold yellow",
    "archived": "dim",
    "refused": "red",
    "rolled_back": "red",
    "suspended": "red",
}
HELDOUT_GATE = "heldout_tasks"
_ACTIVE = {"running", "paused", "held", "suspended", "soaking"}
_GATE_MARKS = {"passed": "[green]passed[/]", "failed": "[red]failed[/]", "waived": "[yellow]waived[/]"}


def draw(picture: Picture, progress: Progress) -> RenderableType:
    """The whole screen."""
    current = progress.current
    title = current.title if current else "done"
    tables = Table.grid(padding=(0, 2))
    tables.add_row(_policies(picture), _evidence(picture))
    body = Group(_loop(picture, current.station if current else ""), tables, _notes(progress))
    return Panel(
        body,
        title=f"[bold]Ratchet[/]  {title}",
        subtitle=clock_text(progress.elapsed_s),
        title_align="left",
        subtitle_align="right",
        width=WIDTH,
        box=box.ROUNDED,
    )


def bar(share: float, width: int, style: str = "cyan") -> Text:
    """A horizontal bar, `share` of it filled."""
    filled = round(min(1.0, max(0.0, share)) * width)
    return Text("█" * filled, style) + Text("░" * (width - filled), "dim")


def interval_bar(measured: Proportion, width: int) -> Text:
    """A success rate as a bar with its confidence interval drawn on it."""
    low, high = (round(bound * width) for bound in measured.interval)
    point = min(width - 1, round(measured.rate * width))
    cells = ["━" if low <= place < high else "·" for place in range(width)]
    line = Text("".join(cells), "dim")
    line.stylize("green", low, high)
    return line[:point] + Text("●", "bold green") + line[point + 1 :]


def evidence_share(e_value: float, threshold: float) -> float:
    """How far an e-value is on its way from 1 to the threshold, on a logarithmic scale."""
    return math.log(max(1.0, e_value)) / math.log(threshold)


def _loop(picture: Picture, active: str) -> RenderableType:
    traffic = picture.traffic
    mean = "" if traffic.mean_reward is None else f"mean {traffic.mean_reward:.2f}"
    above: list[Station] = [
        _agents(picture),
        (GATEWAY, [f"{traffic.calls:,} calls", "[dim]ids, log-probs[/]"]),
        (COLLECTOR, [f"{traffic.trajectories:,} tickets", "[dim]in ClickHouse[/]"]),
        (REWARDS, [f"{traffic.rewards:,} rewards", mean]),
    ]
    below = [_canary(picture), _gate(picture), _trainer(picture), _snapshot(picture)]
    grid = Table.grid(padding=0)
    for _ in range(7):
        grid.add_column(justify="center", vertical="middle")
    grid.add_row(*_joined([_station(name, lines, active) for name, lines in above], "──▶"))
    grid.add_row("▲", "", "", "", "", "", "│")
    grid.add_row("│", "", "", "", "", "", "▼")
    grid.add_row(*_joined([_station(name, lines, active) for name, lines in below], "◀──"))
    return grid


def _joined(stations: Sequence[RenderableType], arrow: str) -> list[RenderableType]:
    cells: list[RenderableType] = [stations[0]]
    for station in stations[1:]:
        cells += [Text(arrow, "dim"), station]
    return cells


def _station(name: str, lines: Sequence[RenderableType], active: str) -> Panel:
    working = name == active
    body = Group(*(line if isinstance(line, Text) else Text.from_markup(str(line), overflow="crop") for line in lines))
    return Panel(
        body,
        title=f"[bold]{name}[/]",
        width=STATION_WIDTH,
        height=4,
        padding=0,
        border_style="bold cyan" if working else "dim",
        box=box.HEAVY if working else box.ROUNDED,
    )


def _agents(picture: Picture) -> Station:
    recent = picture.traffic.recent
    if recent is None:
        return AGENTS, ["[dim]no ticket yet[/]", ""]
    return AGENTS, [f"{recent.rate:.0%} solved", bar(recent.rate, BAR_WIDTH, "green")]


def _snapshot(picture: Picture) -> Station:
    job = next((job for job in reversed(picture.jobs) if job.snapshot is not None), None)
    if job is None or job.snapshot is None:
        return SNAPSHOT, ["[dim]none yet[/]", ""]
    return SNAPSHOT, [f"{job.trajectories or 0:,} tickets", f"[dim]{job.snapshot.digest[:8]} in S3[/]"]


def _trainer(picture: Picture) -> Station:
    job = picture.running_job
    if job is None:
        return TRAINER, ["[dim]waits for work[/]", ""]
    percent = (job.progress.percent_complete if job.progress else None) or 0.0
    shown, metrics = job.state, job.metrics
    if metrics is not None and metrics.loss is not None:
        # The loss of a policy gradient says nothing; how much of the data still counts does.
        shown = f"loss {metrics.loss:.2f}" if metrics.ess is None else f"ess {metrics.ess:.2f}"
    return TRAINER, [f"{job.algorithm} {shown}", bar(percent / 100, BAR_WIDTH)]


def _gate(picture: Picture) -> Station:
    rollout = picture.rollout
    if rollout is None or not rollout.gates:
        return GATE, ["[dim]no candidate yet[/]", ""]
    outcome = next((gate.outcome for gate in rollout.gates if gate.gate == HELDOUT_GATE), None)
    if outcome is None and rollout.candidate.version == picture.stable:
        return GATE, [f"v{rollout.candidate.version} came first", "[dim]nothing to compare[/]"]
    return GATE, [
        f"candidate v{rollout.candidate.version}",
        f"held-out {_GATE_MARKS.get(outcome or '', outcome or 'asking')}",
    ]


def _canary(picture: Picture) -> Station:
    rollout = picture.rollout
    if rollout is None or rollout.state not in _ACTIVE:
        serving = f"v{picture.stable} serves all" if picture.stable is not None else "[dim]nothing serves[/]"
        return CANARY, [serving, "" if rollout is None else f"[dim]v{rollout.candidate.version} {rollout.state}[/]"]
    return CANARY, [f"v{rollout.candidate.version} has {rollout.weight:.0%}", bar(rollout.weight, BAR_WIDTH, "yellow")]


def _policies(picture: Picture) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="policies on held-out tickets", title_justify="left")
    table.add_column("v", justify="right")
    table.add_column("greedy, 95 %", no_wrap=True)
    table.add_column("sampled", no_wrap=True)
    table.add_column("live", justify="right", no_wrap=True, min_width=5)
    table.add_column("stage", no_wrap=True)
    for policy in picture.policies:
        exam, live = picture.exams.get(policy.version), picture.by_version.get(policy.version)
        greedy, sampled = (exam.success(mode) if exam else None for mode in (GREEDY, SAMPLED))
        stage = Text(policy.stage.replace("_", " "), STAGE_STYLES.get(policy.stage, ""))
        table.add_row(
            str(policy.version),
            interval_bar(greedy, BAR) + Text(f" {greedy.rate:.2f}") if greedy else Text("not measured", "dim"),
            f"{sampled.rate:.2f}" if sampled else "",
            f"{live.trajectories:,}" if live else "",
            stage,
        )
    return table


def _evidence(picture: Picture) -> RenderableType:
    rollout = picture.rollout
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="the canary's evidence", title_justify="left")
    table.add_column("test", no_wrap=True)
    table.add_column("e-value", no_wrap=True)
    if rollout is None or rollout.arms.canary.trajectories + rollout.arms.stable.trajectories == 0:
        table.add_row("[dim]no canary traffic yet[/]", "")
        return table
    table.add_row("not worse", _e_value(rollout, "promotion", "green"))
    table.add_row("worse", _e_value(rollout, "rollback", "red"))
    table.add_row("tickets", f"{rollout.arms.canary.trajectories} canary, {rollout.arms.stable.trajectories} stable")
    return table


def _e_value(rollout: RolloutOut, test: str, style: str) -> Text:
    e_value, threshold = rollout.e_values.get(test, {}).get("combined", 1.0), rollout.thresholds["rollback"]
    reached = bar(evidence_share(e_value, threshold), BAR, style)
    return reached + Text(f" {min(e_value, 999):.3g}, needs {threshold:g}")


def _notes(progress: Progress) -> RenderableType:
    lines = [Text(f"{clock_text(note.at_s)}  {note.text}", overflow="ellipsis") for note in progress.notes[-NOTES:]]
    for line in lines:
        line.no_wrap = True
        line.truncate(WIDTH - 4, overflow="ellipsis")
    return Group(*(lines + [Text("")] * (NOTES - len(lines))))
