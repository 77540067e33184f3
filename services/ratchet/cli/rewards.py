"""`ratchet rewards`: another reward function over history, compared, then accepted; and how far people trust judges."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from ratchet.cli.connections import settings_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.options import HERE, AsJson, Directory, OptionalRole, Since, since_of
from ratchet.cli.output import console, follow_up, print_answer, print_section, print_table, progress
from ratchet.core.contract.reward import RewardFunction
from ratchet.core.contract.reward_commands import (
    LINES,
    PROGRAM,
    Accepted,
    Change,
    Failure,
    JudgeReport,
    Judges,
    Progress,
    Recomputed,
    RewardCommand,
)
from ratchet.core.errors import Rejected, Unavailable

app = typer.Typer(no_args_is_help=True)

R = TypeVar("R", Recomputed, Accepted, Judges)


def function_of(text: str) -> RewardFunction:
    """The function that `NAME@VERSION` names. Raises `typer.BadParameter`."""
    name, at, version = text.partition("@")
    if not (name and at and version):
        raise typer.BadParameter(f"{text!r} is not NAME@VERSION, such as standard@2")
    return RewardFunction(name=name, version=version)


@app.command()
def recompute(
    function: Annotated[
        str, typer.Option(help="NAME@VERSION: function_name and function_version of [reward_computer] here.")
    ],
    since: Since = "30d",
    role: OptionalRole = None,
    ask_judges: Annotated[
        bool, typer.Option(help="Ask judges about trajectories that they have not judged, within their budgets.")
    ] = True,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Compute what was stored since then with another reward function, beside the rewards that count, and compare.

    Nothing changes until `rewards accept`. The function is what the settings describe where this runs.
    """
    command = RewardCommand(
        command="recompute", function=function_of(function), since=since_of(since), role=role, asks=ask_judges
    )
    report = run(locate(directory), command, Recomputed, quiet=as_json)
    print_answer(report, as_json, lambda: show_recomputed(report, function, directory))


@app.command()
def accept(
    function: Annotated[str, typer.Argument(help="NAME@VERSION, as it was recomputed.")],
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Have a recomputed function count: for every trajectory that comes, and for what was recomputed.

    Repeat it where it was cut off: what is published already stays as it is.
    """
    command = RewardCommand(command="accept", function=function_of(function))
    report = run(locate(directory), command, Accepted, quiet=as_json)
    sentence = (
        f"{function} is in force: {report.published} rewards published, {report.revised} of them with later opinions;"
        f" {report.present} were there already"
    )
    if report.left:
        again = follow_up("rewards", "recompute", "--function", function, directory=directory)
        sentence += f"\n{report.left} trajectories still have another function's reward: `{again}`, then accept again"
    print_answer(report, as_json, sentence)


@app.command()
def judges(
    role: OptionalRole = None, since: Since = "90d", as_json: AsJson = False, directory: Directory = HERE
) -> None:
    """The judges that the settings here name, how far people agree with them, and what they used of today's budget."""
    command = RewardCommand(command="judges", since=since_of(since), role=role)
    report = run(locate(directory), command, Judges, quiet=as_json)
    print_answer(report, as_json, lambda: show_standing(report.judges))


def run(endpoints: Endpoints, command: RewardCommand, kind: type[R], *, quiet: bool) -> R:
    """The report of the program that does the work. Raises `NoStack`, `Unavailable` or `Rejected`."""
    settings_of(endpoints, command.role)
    with (
        progress(command.command, quiet=quiet) as bar,
        subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **endpoints.env},
        ) as process,
    ):
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        assert process.stdout is not None  # noqa: S101 - as above
        process.stdin.write(msgspec.json.encode(command))
        process.stdin.close()
        for text in process.stdout:
            line = LINES.decode(text)
            if isinstance(line, Progress):
                bar(line.done, line.total, line.what)
            elif isinstance(line, Failure):
                raise (Unavailable if line.passing else Rejected)(line.message)
            elif isinstance(line, kind):
                return line
    raise Rejected(f"the program {PROGRAM} ended without a report, with exit code {process.returncode}")


def show_recomputed(report: Recomputed, function: str, directory: Path) -> None:
    """What the function would change."""
    judged = report.judged
    left_out = f", {report.unrewarded} not rewarded yet" if report.unrewarded else ""
    console.print(f"{report.trajectories} trajectories under {function} ({report.digest[:8]}){left_out}", markup=False)
    if judged.asked or judged.over_budget:
        words = f"{judged.asked} questions to judges: {judged.judged} judged, {judged.no_verdict} without a verdict"
        console.print(f"{words}, {judged.failed} failed; {judged.over_budget} beyond the budget of today")
    if report.judges:
        show_judges(report.judges)
    if report.note:
        console.print(report.note, markup=False)
    rows = [
        (
            comparison.role,
            comparison.trajectories,
            f"{comparison.before:.3f}",
            f"{comparison.after:.3f}",
            f"{comparison.after - comparison.before:+.3f} ({comparison.low:+.3f} to {comparison.high:+.3f})",
            comparison.changed,
            None if comparison.rank_correlation is None else f"{comparison.rank_correlation:.3f}",
        )
        for comparison in report.comparisons
    ]
    columns = ("role", "trajectories", "before", "after", "difference (95 %)", "changed", "rank correlation")
    print_table(columns, rows, "no rewarded trajectory was stored in this time")
    changes = [
        (change.role, change.trajectory_id, f"{change.before:.3f}", f"{change.after:.3f}", causes(change))
        for change in report.changes
    ]
    print_section(("role", "largest changes", "before", "after", "because"), changes)
    if report.trajectories:
        command = follow_up("rewards", "accept", function, directory=directory)
        console.print(f"`{command}` has it count", markup=False)


def show_standing(reports: Sequence[JudgeReport]) -> None:
    """Judges, and what those lack that could count."""
    show_judges(reports)
    if any(report.calibrated and not report.counts for report in reports):
        console.print(
            "people agree with a judge that has no weight yet: raise function_version of [reward_computer], then"
            " `ratchet rewards recompute` and `ratchet rewards accept`",
            markup=False,
        )


def show_judges(reports: Sequence[JudgeReport]) -> None:
    """A table of judges."""
    rows = [
        (
            report.role,
            report.model,
            report.judged,
            report.labels,
            None if report.kappa is None else f"{report.kappa:.2f} ({report.low:.2f} to {report.high:.2f})",
            "yes" if report.counts else "not yet" if report.calibrated else "uncalibrated",
            _budget(report),
        )
        for report in reports
    ]
    columns = ("role", "judge", "judged", "labels of people", "kappa (95 %)", "counts", "today")
    print_table(columns, rows, "the settings here name no judge")


def _budget(one: JudgeReport) -> str:
    limit = "" if one.usd_per_day is None else f" of ${one.usd_per_day:.2f}"
    return f"{one.calls_today} of {one.calls_per_day} calls, ${one.usd_today:.2f}{limit}"


def causes(change: Change) -> str:
    """The components that changed."""

    def shown(score: float | None) -> str:
        return "-" if score is None else f"{score:.2f}"

    parts = [f"{name} {shown(before)} → {shown(after)}" for name, (before, after) in change.components.items()]
    return ", ".join(parts) or "other weights"
