"""`ratchet trajectories`: the runs of agents, and their rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from ratchet.cli.api import require_role
from ratchet.cli.audited import record_read
from ratchet.cli.connections import ask_of_roles, ask_warehouse
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.filters import Filters, takes_filters
from ratchet.cli.ids import listed_ids, trajectory_named
from ratchet.cli.options import HERE, AsJson, Directory, OptionalRole, TrajectoryArgument, WithEvaluation, since_of
from ratchet.cli.output import LONG, console, cut, print_answer, print_facts, print_section, print_table
from ratchet.core.contract import Feedback, Reward, Trajectory
from ratchet.core.contract.http.console import TrajectoryBrief
from ratchet.core.errors import NotFound
from ratchet.core.rules.access import RoleSet
from ratchet.core.rules.chat import chat_messages, text_of
from ratchet.core.rules.task_kind import complexity_of, domain_of
from ratchet.core.stores.capture import Barred, of_trajectory
from ratchet.core.stores.trajectories import Branch, StoredTrajectories, ancestors
from ratchet.core.stores.trajectory_list import TrajectoryList
from ratchet.core.stores.trajectory_search import TrajectoryFilter

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Row, Warehouse

app = typer.Typer(no_args_is_help=True)

FAILED = 20
"""So many failed calls of a trajectory are shown at most."""


@app.command("list")
@takes_filters
def list_(
    filters: Filters,
    text: Annotated[str | None, typer.Option(help="Only with these words in the conversation.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only from then on: so long ago, or an instant.", metavar="TIME")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10000, help="How many of the newest to show.")] = 20,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """The open trajectories, whose runs go on, and the newest ended ones, each with its newest reward.

    Texts are read for two seconds, the newest first: the answer says how far back that came, `--until` goes on there.
    """
    endpoints = locate(directory)
    only = {"version" if name == "policy" else name: value for name, value in filters.only.items()}
    begin = since_of(since) if since is not None else None
    asked = TrajectoryFilter(text=text, since=begin, until=filters.until, evaluation=filters.evaluation, **only)

    def ask(warehouse: Warehouse) -> Awaitable[Newest]:
        return newest_in(TrajectoryList(warehouse, lambda: datetime.now(UTC)), asked, limit)

    record_read(endpoints, "list_trajectories", filters.role)
    runs = ask_warehouse(endpoints, ask, filters.role)
    if not runs.ended and not runs.open and filters.role is not None:
        require_role(endpoints, filters.role)
    empty = "no such trajectories" if only or text or begin or filters.until else "no trajectories yet"
    if runs.hides_evaluations:
        empty = f"{empty} but those of evaluations: --with-evaluation lists them"
    if runs.open:
        empty = "none has ended yet: a run ends when its agent reports it, or ten minutes after its last call"
    document = {"trajectories": runs.ended, "open": runs.open, "searched_since": runs.searched_since}
    print_answer(document, as_json, lambda: show_list(runs, empty, filters.until))


@app.command()
def show(
    trajectory: TrajectoryArgument,
    role: OptionalRole = None,
    full: Annotated[bool, typer.Option("--full", help="Show long turns whole.")] = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """One trajectory: its messages, its outcome, every revision of its reward, and the feedback on it."""
    endpoints = locate(directory)
    named = trajectory_named(endpoints, trajectory, role)
    try:
        own = ask_of_roles(endpoints, lambda stored, roles: StoredTrajectories(stored).role_of(named, role, roles))
    except NotFound as error:  # it names the id, which the text may only lead to
        raise NotFound(f"no trajectory {trajectory} is stored{f' in the role {role}' if role else ''}") from error
    record_read(endpoints, "get_trajectory", own, [named])
    whole = ask_of_roles(endpoints, lambda warehouse, roles: read(warehouse, named, own, roles))
    print_answer(whole, as_json, lambda: show_one(whole, full=full))


@app.command()
def tail(
    role: OptionalRole = None,
    with_evaluation: WithEvaluation = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Print trajectories and their rewards as they arrive, until Ctrl-C; with --json a document on each line."""
    from ratchet.cli.tail import follow  # noqa: PLC0415 - only this command reads streams

    record_read(locate(directory), "tail_trajectories", role)
    asyncio.run(follow(locate(directory), role, as_json, with_evaluation=with_evaluation))


@dataclass(frozen=True, slots=True)
class Whole:
    """A trajectory with its rewards and feedback."""

    trajectory: Trajectory
    rewards: list[Reward]
    """Oldest revision first."""
    feedback: list[Feedback]
    run: list[Branch]
    """All trajectories of its run, itself among them, each after its parent; empty when it is the only one."""
    calls: int = 0
    """Calls of its run that went through the gateway."""
    barred: list[Barred] = field(default_factory=list[Barred])
    """Those that policy gradients cannot use, by reason."""
    name: str | None = None
    """What the agent calls the run, where it names it."""
    models: list[str] = field(default_factory=list[str])
    """As the servers that answered its calls name them."""
    failed: Sequence[Row] = ()
    """The first of its calls that failed, each with its error; another policy may have answered in its place."""


Runs = Sequence[TrajectoryBrief]


class Newest(NamedTuple):
    """The newest trajectories, each with its newest reward."""

    ended: Runs
    open: Runs
    hides_evaluations: bool
    """Those of evaluations are all that there are."""
    searched_since: datetime | None
    """Texts of trajectories before this instant were not read; None: nothing was left out."""


async def newest_in(listing: TrajectoryList, asked: TrajectoryFilter, limit: int) -> Newest:
    """Open ones have no outcome to ask for."""
    searches = [replace(asked, state="ended"), *([] if asked.outcome else [replace(asked, state="open")])]
    pages = await asyncio.gather(*(listing.page(search, limit) for search in searches))
    ended, runs = pages[0], [run for page in pages[1:] for run in page.trajectories]
    reached = [page.searched_since for page in pages if page.searched_since]
    hides = not (ended.trajectories or runs or asked.evaluation or reached)
    hidden = (await listing.page(replace(asked, evaluation=True), 1)).trajectories if hides else ()
    called = [msgspec.structs.replace(run, last_call_at=run.last_call_at or run.started_at) for run in runs]
    return Newest(ended.trajectories, called, bool(hidden), max(reached, default=None))


async def read(warehouse: Warehouse, trajectory_id: str, role: str, among: RoleSet) -> Whole:
    """The trajectory of a role, and of its run what is `among` these. Raises `NotFound` while it has not ended."""
    stored = StoredTrajectories(warehouse)
    trajectory = await stored.newest(trajectory_id, role)
    if trajectory is None:
        (count,) = await warehouse.rows(
            "SELECT uniqExact(event_id) AS turns FROM turns WHERE role = {role:String} AND trajectory_id = {id:String}",
            {"role": role, "id": trajectory_id},
        )
        turns = f"{count['turns']} turn{'s' * (count['turns'] != 1)}"
        recorded = f"trajectory {trajectory_id} has {turns} and has not ended yet"
        end = f"POST /v1/trajectories/{trajectory_id}/end at the gateway ends it"
        raise NotFound(f"{recorded}: {end}; without an end it is shown after ten minutes without a call")
    rewards = await stored.rewards(trajectory_id, role)
    feedback = await stored.feedback(trajectory_id, role)
    run = await stored.run({trajectory_id, *ancestors(trajectory)}, among)
    recorded_as = trajectory.recorded_as or trajectory_id
    calls, barred = await of_trajectory(warehouse, role, recorded_as) or (0, [])
    name, models = await stored.names(role, recorded_as)
    failed = await stored.failed(role, recorded_as, FAILED)
    return Whole(trajectory, rewards, feedback, run, calls, barred, name, models, failed)


def roles_of(endpoints: Endpoints, trajectory_id: str) -> list[str]:
    """Those of the key's roles under which anything of a trajectory is stored: itself, or turns of it."""
    return ask_of_roles(endpoints, lambda stores, among: StoredTrajectories(stores).roles_of(trajectory_id, among))


def show_list(newest: Newest, empty: str, until: datetime | None = None) -> None:
    """Tables, newest first: of what is open, and of what has ended; `empty` stands for none of those.

    `until`: the end of the search, where one was asked for.
    """
    stored, still_open, searched_since = newest.ended, newest.open, newest.searched_since
    if searched_since is not None and not still_open:
        empty = "none whose texts were read so far"
    ids = listed_ids(run.trajectory_id for run in (*still_open, *stored))
    if still_open:
        runs = [
            (ids[run.trajectory_id], run.role, run.agent_id, _state(run), run.last_call_at, run.model, run.name)
            for run in still_open
        ]
        print_table(("trajectory", "role", "agent", "state", "last call", "model", "run"), runs, "")
        console.print()
    of_run = ("trajectory", "role", "agent", "source", "turns", "outcome", "reward", "rev", "ended")
    columns = (*of_run, "model", "run", "task")
    rows = [
        (
            ids[trajectory.trajectory_id],
            trajectory.role,
            trajectory.agent_id,
            trajectory.source,
            trajectory.turns,
            trajectory.outcome,
            trajectory.reward,
            trajectory.revision,
            trajectory.ended_at,
            trajectory.model,
            trajectory.name,
            None if trajectory.task_id == trajectory.trajectory_id else trajectory.task_id,
        )
        for trajectory in stored
    ]
    print_table(columns, rows, empty)
    if searched_since is not None:
        at = searched_since.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        # Imports without times have all one instant.
        goes_on = f"--until {at}" if until is None or searched_since < until else "the console's list"
        console.print(f"texts were read back to {at}: {goes_on} goes on there", style="dim", markup=False)


def _state(run: TrajectoryBrief) -> str:
    failed = f", {run.failed_calls} failed" if run.failed_calls else ""
    return f"open, {run.calls} call{'s' * (run.calls != 1)}{failed}"


def show_one(whole: Whole, *, full: bool = False) -> None:
    """The facts, the conversation, the rewards and the feedback; long turns only in part, unless `full`."""
    trajectory = whole.trajectory
    print_facts(_facts(whole))
    console.print()
    for attempt in whole.run:
        mark = "->" if attempt.trajectory_id == trajectory.trajectory_id else "  "
        facts = f"{attempt.role}, {attempt.turns} turns, {attempt.outcome or 'no outcome'}"
        console.print(f"{mark} {'   ' * attempt.depth}{attempt.trajectory_id} ({facts})", markup=False)
    if whole.run:
        console.print()
    for message in chat_messages(trajectory):
        calls = [call.get("function", call) for call in message.get("tool_calls") or []]
        called = [f"{call.get('name')}({call.get('arguments', '')})" for call in calls]
        text = " ".join(part for part in (text_of(message.get("content")), *called) if part)
        shortened = len(text) > LONG and not full
        console.print(f"{message['role']}:", cut(text) if shortened else text, markup=False)
        if shortened:
            console.print("(`--full` shows all of it)", style="dim", markup=False)
    failed = [(call["call"], call["version"], call["arm"], call["error"]) for call in whole.failed]
    print_section(("failed call", "version", "arm", "error"), failed)
    console.print()
    rewards = [
        (reward.revision, name, part.score, part.weight, reward.total_reward, part.reasoning)
        for reward in whole.rewards
        for name, part in reward.reward_components.items()
        if part.applicable
    ]
    empty = (
        "rewarded, but no component applies: no outcome and no feedback was reported"
        if whole.rewards
        else "no reward yet"
    )
    print_table(("revision", "component", "score", "weight", "total", "because"), rewards, empty)
    if whole.calls:
        console.print()
        lost = sum(barred.calls for barred in whole.barred)
        console.print(f"{whole.calls - lost} of {whole.calls} calls can be learnt from by policy gradients")
    if whole.barred:
        barred = [(barred.reason, barred.calls, barred.place, barred.remedy) for barred in whole.barred]
        print_table(("reason", "calls", "where", "what to change"), barred, "")
    opinions = [
        (given.at, given.kind, value, given.rater, given.source)
        for given in whole.feedback
        for value in (given.value if given.kind != "thumbs" else "up" if given.value is True else "down",)
    ]
    print_section(("at", "feedback", "value", "rater", "source"), opinions)


def _facts(whole: Whole) -> dict[str, object]:
    trajectory = whole.trajectory
    outcome, policy = trajectory.outcome, trajectory.policy
    return {
        "trajectory": trajectory.trajectory_id,
        "run": whole.name,
        "role": trajectory.role,
        "agent": trajectory.agent_id,
        "session": trajectory.session_id,
        "task": trajectory.task_context.task_id,
        "group": trajectory.task_context.group_key,
        "domain": domain_of(trajectory),
        "complexity": complexity_of(trajectory),
        "parent": trajectory.parent_trajectory_id,
        "recorded as": trajectory.recorded_as,
        "error": trajectory.metadata.error,
        "source": trajectory.metadata.source,
        "model": ", ".join(whole.models) or trajectory.metadata.model,
        "policy": f"{policy.role}@{policy.version} ({policy.arm})" if policy else None,
        "started": trajectory.start_timestamp,
        "ended": trajectory.end_timestamp,
        "outcome": outcome.status if outcome else "none reported",
        "verified by": outcome.verified_by if outcome else None,
    }
