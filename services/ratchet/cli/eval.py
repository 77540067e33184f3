"""`ratchet eval`: a policy on the tasks of a file or suite, alone or against another one, without traffic."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from ratchet.bus.message import JsonObject
from ratchet.cli.api import KEY_VARIABLE, known_roles
from ratchet.cli.completion import complete_policy
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory, DryRun
from ratchet.cli.output import Bar, console, errors, print_answer, print_dry_run, print_section, print_table, progress
from ratchet.cli.policies import find_policy
from ratchet.cli.suites import tasks_of
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.evaluation.http_player import ANSWER_S, MOST_TOKENS, HttpPlayer
from ratchet.core.evaluation.playing import BEST, GREEDY, SAMPLED, Plan, Try, best_by_reward, play
from ratchet.core.evaluation.report import (
    Difference,
    DifferingTask,
    Summary,
    difference_of,
    differing,
    summary_of,
)
from ratchet.core.evaluation.reward_scores import RewardScores, reward_model_digest
from ratchet.core.evaluation.task_files import GradedTask, TaskFile, read_task_file
from ratchet.core.service.files import write_whole
from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer

app = typer.Typer(no_args_is_help=True)

MOST_SHOWN = 20
"""Differing tasks in a table; `--json` and `-o` have all of them."""
SUITE_MARGIN = 0.1
"""`--no-worse-than` where two policies are compared on a suite, and the option is absent."""
AGENT = "ratchet eval"
ENGINE_KEY = "RATCHET_ENGINE_API_KEY"
"""Names the key of the engine, which holds reward models."""


class Asked(NamedTuple):
    """A model as the gateway knows it."""

    model: str
    policy: str | None
    """The full name of the policy that has to answer; None for a model that is no policy of ours."""

    @property
    def name(self) -> str:
        return self.policy or self.model


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the command."""

    tasks_file: str
    tasks_digest: str
    tasks: int
    summaries: Sequence[Summary]
    differences: Sequence[Difference] = ()
    differing: Sequence[DifferingTask] = ()
    verdict: str | None = None
    """Where `--no-worse-than` asked for one: `no worse`, `not shown`, or `no verdict` where answers are missing
    or every task is refused for both."""


@app.command("eval")
def evaluate(
    policy: Annotated[
        str,
        typer.Argument(
            help="`support@3`, a role (the policy that serves it now), or any other model of the gateway.",
            autocompletion=complete_policy,
        ),
    ],
    tasks: Annotated[
        Path | None, typer.Option(help="A task file: JSON lines of {id, messages, tools, expect}.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="A suite in its place: `ratchet suites list` has them.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Another policy or model, to compare with.", autocompletion=complete_policy)
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=100, help="Beside the greedy answer, draw so many answers to each task.")
    ] = 0,
    temperature: Annotated[float, typer.Option(min=0.01, max=2, help="At which these are drawn.")] = 1.0,
    reward_model: Annotated[
        str | None,
        typer.Option(
            help="A reward model, by the digest or uri of its manifest: of each task's samples the one that it likes"
            " best counts as well (best of n)."
        ),
    ] = None,
    no_worse_than: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Exit with 1 unless the 95 % interval of the difference lies above minus this; for CI. On a suite .1,"
            " unless it is given.",
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Tasks that are asked at the same time.")] = 4,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Every answer with its grade, as JSON lines.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Play the tasks of a file or suite with a policy, grade its answers, and compare it with another one; without
    traffic.

    The gateway marks these calls as an evaluation: they are in no statistic of a canary and in no training.

    A task that is refused for both policies is in no comparison.

    Exit code 1: `--no-worse-than` is not shown; 3: some tasks got no answer from the engine, or every one was refused.
    """
    if (tasks is None) == (suite is None):
        raise typer.BadParameter("give either --tasks FILE or --suite NAME")
    if suite is not None and against is not None and no_worse_than is None:
        no_worse_than = SUITE_MARGIN
    if no_worse_than is not None and against is None:
        raise typer.BadParameter("--no-worse-than compares two policies: name the other one with --against")
    if reward_model is not None and samples < 2:
        raise typer.BadParameter("--reward-model chooses of several samples: draw them with --samples")
    digest = None if reward_model is None else reward_model_digest(reward_model)
    if output is not None and output.exists() and tasks is not None and tasks.exists() and output.samefile(tasks):
        raise typer.BadParameter(f"--output would overwrite the tasks: {output} is the file of --tasks")
    endpoints, names = locate(directory), [name for name in (policy, against) if name is not None]
    roles = [name.partition("@")[0] for name in names]
    file = read_task_file(tasks) if tasks else tasks_of(suite or "", roles, endpoints)
    sides = [asked_of(endpoints, name) for name in names]
    if len({side.name for side in sides}) < len(sides):
        raise typer.BadParameter(f"{policy} and {against} are the same policy: {sides[0].name}")
    plan = Plan(samples=samples, temperature=temperature, at_once=concurrency)
    if dry_run:
        chosen_by = {} if digest is None else {"reward_model": digest}
        print_dry_run(f"ask {' and '.join(side.name for side in sides)}", planned(file, plan) | chosen_by, as_json)
        return
    tries = asyncio.run(play_all(endpoints, sides, file.tasks, plan, digest, quiet=as_json))
    report = report_of(file, tries, no_worse_than)
    if output is not None:
        write_whole(output, b"".join(_lines(tries)))
    print_answer(report, as_json, lambda: show(report))
    raise typer.Exit(exit_code(report, no_worse_than))


def asked_of(endpoints: Endpoints, name: str) -> Asked:
    """The policy that a name means, by its version; a name that no policy has is a model of another server.

    Raises `NotFound` or `Rejected` for a version that a role does not have.
    """
    try:
        policy = find_policy(endpoints, name).name
    except (NotFound, Rejected):
        role, at, _ = name.partition("@")
        if at and role in known_roles(endpoints):
            raise
        return Asked(name, None)
    return Asked(policy, policy)


def planned(file: TaskFile, plan: Plan) -> JsonObject:
    """What a run would do."""
    return {
        "tasks_file": file.name,
        "tasks_digest": file.digest,
        "tasks": len(file.tasks),
        "tries_of_each": len(plan.draws),
        "temperature": plan.temperature if plan.samples else 0,
    }


async def play_all(
    endpoints: Endpoints,
    sides: Sequence[Asked],
    tasks: Sequence[GradedTask],
    plan: Plan,
    reward_model: str | None = None,
    *,
    quiet: bool,
) -> Mapping[str, Sequence[Try]]:
    """Every try by the name of its policy, one policy after the other: they share an engine.

    `reward_model`: the digest of the one that chooses of the samples.
    """
    headers = {**bearer(endpoints.env.get(KEY_VARIABLE)), "x-ratchet-agent": AGENT, "x-ratchet-arm": "pinned"}
    tries: dict[str, Sequence[Try]] = {}
    async with AsyncExitStack() as stack:
        gateway = Peer("the gateway", endpoints.url("gateway"), headers, ANSWER_S)
        client = await stack.enter_async_context(AsyncApiClient(gateway))
        if reward_model is not None:
            engine = Peer("the engine", endpoints.url("engine"), bearer(endpoints.env.get(ENGINE_KEY)), ANSWER_S)
            http = await stack.enter_async_context(AsyncApiClient(engine))
            plan = replace(plan, scorer=RewardScores(http, reward_model).score)
        for side in sides:
            with progress(f"asking {side.name}", quiet=quiet) as bar:
                limit = MOST_TOKENS if side.policy is not None else None  # not every provider knows `max_tokens`
                player = HttpPlayer(client, side.model, side.policy, limit)
                counted = _Counted(bar, len(tasks) * len(plan.draws))
                made = await play(player, tasks, plan, counted, clock=time.monotonic)
                tries[side.name] = [*made, *(best_by_reward(made) if reward_model is not None else [])]
    return tries


class _Counted:
    """Moves a bar by one with each try."""

    def __init__(self, bar: Bar, total: int) -> None:
        self._bar, self._total, self._done = bar, total, 0

    def __call__(self, _: Try) -> None:
        self._done += 1
        self._bar(self._done, self._total)


def report_of(file: TaskFile, tries: Mapping[str, Sequence[Try]], no_worse_than: float | None) -> Report:
    """Success by policy and mode, and the differences where there are two policies."""
    played = {attempt.mode for own in tries.values() for attempt in own}
    modes = [mode for mode in (GREEDY, SAMPLED, BEST) if mode in played]
    by_mode = {
        mode: {name: [attempt for attempt in own if attempt.mode == mode] for name, own in tries.items()}
        for mode in modes
    }
    pairs = {mode: list(own.values()) for mode, own in by_mode.items()} if len(tries) == 2 else {}
    differences = [difference_of(mode, one, other) for mode, (one, other) in pairs.items()]
    summaries = [summary_of(name, mode, own) for mode, sides in by_mode.items() for name, own in sides.items()]
    return Report(
        tasks_file=file.name,
        tasks_digest=file.digest,
        tasks=len(file.tasks),
        summaries=summaries,
        differences=differences,
        differing=[row for mode, (one, other) in pairs.items() for row in differing(mode, one, other)],
        verdict=None if no_worse_than is None else _verdict(summaries, differences, no_worse_than),
    )


def _verdict(summaries: Sequence[Summary], differences: Sequence[Difference], margin: float) -> str:
    if any(summary.faults for summary in summaries) or not all(difference.tasks for difference in differences):
        return "no verdict"
    return "no worse" if all(difference.interval[0] >= -margin for difference in differences) else "not shown"


def exit_code(report: Report, no_worse_than: float | None) -> ExitCode:
    """The code, with a line on standard error for one that is not 0."""
    faults, reasons = (
        Counter[str](),
        {summary.policy: summary.reason for summary in reversed(report.summaries) if summary.reason},
    )
    for summary in report.summaries:
        faults[summary.policy] += summary.faults
    for policy, count in (+faults).items():
        counted = f"{count} tries of {policy} got no answer from the engine, and count nowhere"
        errors.print(f"{counted}: {reasons.get(policy)}", markup=False)
    if faults.total():
        return ExitCode.PARTLY
    if refused := _refused_whole(report.summaries):
        reason = next(iter(reasons.values()), "without a reason")
        errors.print(f"every {refused} try was refused: nothing was evaluated: {reason}", markup=False)
        return ExitCode.PARTLY
    if report.verdict == "not shown":
        lowest = min(report.differences, key=lambda difference: difference.interval[0])
        errors.print(
            f"it may be worse by more than {no_worse_than:g}: the 95 % interval of the {lowest.mode} difference begins"
            f" at {lowest.interval[0]:+.3f}",
            markup=False,
        )
        return ExitCode.FAILED
    return ExitCode.DONE


def _refused_whole(summaries: Sequence[Summary]) -> str | None:
    """The first mode in which no policy answered: each of their tries was refused."""
    modes = dict.fromkeys(summary.mode for summary in summaries)
    own = {mode: [summary for summary in summaries if summary.mode == mode] for mode in modes}
    return next((mode for mode in modes if all(summary.refused == summary.tries for summary in own[mode])), None)


def show(report: Report) -> None:
    """The report for people."""
    columns = ("policy", "mode", "success", "95 %", "tasks", "refused", "no answer", "tokens", "p50 ms", "p95 ms")
    rows = [
        (
            summary.policy,
            summary.mode,
            "-" if summary.success is None else f"{summary.success:.3f}",
            _interval(summary.interval),
            summary.tasks,
            summary.refused,
            summary.faults,
            f"{summary.prompt_tokens} + {summary.completion_tokens}",
            summary.latency_p50_ms,
            summary.latency_p95_ms,
        )
        for summary in report.summaries
    ]
    print_table(columns, rows, "no tasks")
    for difference in report.differences:
        counts = f"better at {difference.better} of {difference.tasks} tasks, worse at {difference.worse}"
        counts += f"; left out, refused for both: {difference.refused_for_both}" if difference.refused_for_both else ""
        words = f"{difference.mode} difference {difference.difference:+.3f} {_interval(difference.interval)}: {counts}"
        console.print(words, markup=False)
    if report.differences and not any(summary.success for summary in report.summaries):
        console.print("neither policy solved a task: this file cannot tell the two apart", markup=False)
    if report.differing:
        first, second = report.summaries[0].policy, report.summaries[1].policy
        shown = [(row.task, row.mode, row.policy, row.against, row.why) for row in report.differing[:MOST_SHOWN]]
        print_section(("task", "mode", first, second, "the worse one"), shown)
    if len(report.differing) > MOST_SHOWN:
        console.print(f"and {len(report.differing) - MOST_SHOWN} more tasks: --json lists them")


def _interval(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:.3f}, {interval[1]:.3f}]"


def _lines(tries: Mapping[str, Sequence[Try]]) -> list[bytes]:
    return [
        msgspec.json.encode({"policy": policy, "success": attempt.success, **msgspec.to_builtins(attempt)}) + b"\n"
        for policy, own in tries.items()
        for attempt in own
    ]
