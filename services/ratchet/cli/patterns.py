"""`ratchet patterns`: what goes wrong in a role, or goes otherwise than before, with evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlencode

import typer

from ratchet.cli.api import get, post, segment
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.ids import listed_ids
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, OptionalRoleArgument
from ratchet.cli.output import console, follow_up, print_answer, print_dry_run, print_facts, print_section, print_table
from ratchet.core.contract.http.analyst import DecisionIn, PatternOut, PatternsOut
from ratchet.core.contract.learning import Effect, Pattern, Trigger
from ratchet.core.errors import NotFound, Rejected

app = typer.Typer(no_args_is_help=True)
T = TypeVar("T")

LEAST = 4
"""Fewer characters of an id name nothing."""
ANALYST = "analyst"

COLUMNS = ("pattern", "role", "kind", "state", "share", "reward", "USD", "stability", "statement")
"""Of a list; those that it was asked for by are left out, so that it fits into 100 characters."""

PatternId = Annotated[
    str, typer.Argument(help="The pattern's id, or how it begins, as in `ratchet patterns list`.", metavar="ID")
]
Reason = Annotated[str, typer.Option("--reason", help="Why; the trail keeps it.")]


@app.command("list")
def list_patterns(
    role: OptionalRoleArgument = None,
    state: Annotated[
        Literal["open", "closed", "dismissed", "all"], typer.Option(help="Only those of this state.")
    ] = "open",
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """List patterns, the dearest first."""
    answer = read_list(locate(directory), "patterns", PatternsOut, role, None if state == "all" else state)
    ids = listed_ids(each.pattern_id for each in answer.patterns)
    chosen = {"role": role is not None, "state": state != "all"}
    columns = tuple(name for name in COLUMNS if not chosen.get(name))
    rows = [tuple(row_of(each, ids[each.pattern_id])[name] for name in columns) for each in answer.patterns]
    print_answer(answer, as_json, lambda: print_table(columns, rows, "no patterns"))


def row_of(pattern: Pattern, shown_id: str) -> dict[str, object]:
    """What a list has of a pattern, by column."""
    return {
        "pattern": shown_id,
        "role": pattern.role,
        "kind": pattern.kind,
        "state": pattern.state,
        "share": f"{pattern.share:.1%}",
        "reward": f"{pattern.reward_cost:.1f}",
        "USD": f"{pattern.cost_usd:.2f}",
        "stability": None if pattern.confidence is None else f"{pattern.confidence:.2f}",
        "statement": pattern.statement,
    }


@app.command()
def show(pattern: PatternId, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Show a pattern: its evidence, its cost, and the plans that were made because of it."""
    endpoints = locate(directory)
    known = resolved(endpoints, pattern)
    answer = get(endpoints, ANALYST, path_of(known), PatternOut)

    def show_it() -> None:
        print_facts(facts_of(answer.pattern))
        ids = listed_ids(plan.plan_id for plan in answer.plans)
        rows = [(ids[plan.plan_id], plan.state, plan.risk, plan.change.summary) for plan in answer.plans]
        print_section(("plan", "state", "risk", "change"), rows)
        for trajectory_id in answer.pattern.evidence[:3]:
            console.print(follow_up("trajectories", "show", trajectory_id, directory=directory), markup=False)

    print_answer(answer, as_json, show_it)


@app.command()
def dismiss(
    pattern: PatternId,
    reason: Reason,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Dismiss a pattern: it is known, or no fault. It stays dismissed however often it is seen."""
    _decide(directory, pattern, "dismiss", DecisionIn(reason=reason), dry_run=dry_run, as_json=as_json)


@app.command()
def reopen(
    pattern: PatternId,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; the trail keeps it.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Undo the dismissal of a pattern: it is open again."""
    _decide(directory, pattern, "reopen", DecisionIn(reason=reason), dry_run=dry_run, as_json=as_json)


def _decide(directory: Path, pattern: str, verb: str, body: DecisionIn, *, dry_run: bool, as_json: bool) -> None:
    endpoints = locate(directory)
    path = f"{path_of(resolved(endpoints, pattern))}/{verb}"
    answer = decided(endpoints, path, PatternOut, body, dry_run=dry_run, as_json=as_json)
    if answer is not None:
        print_answer(answer, as_json, f"pattern {answer.pattern.pattern_id} is {answer.pattern.state}")


def read_list(endpoints: Endpoints, what: str, kind: type[T], role: str | None = None, state: str | None = None) -> T:
    """Patterns or plans of a role, or of all that the key is for."""
    query = urlencode({name: value for name, value in (("role", role), ("state", state)) if value is not None})
    return get(endpoints, ANALYST, f"/v1/{what}?{query}", kind)


def decided(
    endpoints: Endpoints, path: str, kind: type[T], body: DecisionIn, *, dry_run: bool, as_json: bool
) -> T | None:
    """What the analyst answers to a decision; None of a dry run, which is printed."""
    if dry_run:
        print_dry_run(f"POST {endpoints.url(ANALYST)}{path}", body, as_json)
        return None
    return post(endpoints, ANALYST, path, kind, body)


def resolved(endpoints: Endpoints, beginning: str) -> Pattern:
    """The pattern whose id begins so. Raises `NotFound` or `Rejected`."""
    every = read_list(endpoints, "patterns", PatternsOut).patterns
    return every[only([each.pattern_id for each in every], beginning, "pattern")]


def only(ids: Sequence[str], beginning: str, what: str) -> int:
    """The place of the one id that begins so. Raises `NotFound` where none does, `Rejected` where several do."""
    matching = [n for n, each in enumerate(ids) if each.startswith(beginning)] if len(beginning) >= LEAST else []
    if not matching:
        raise NotFound(f"there is no {what} {beginning[:80]}: `ratchet {what}s list` has their ids")
    if len(matching) > 1:
        raise Rejected(f"{len(matching)} {what}s begin with {beginning}: {', '.join(ids[n] for n in matching[:5])}")
    return matching[0]


def path_of(pattern: Pattern) -> str:
    """Where the analyst has it."""
    return f"/v1/patterns/{segment(pattern.role)}/{pattern.pattern_id}"


def facts_of(pattern: Pattern) -> dict[str, object]:
    """A pattern for people."""
    return {
        "pattern": pattern.pattern_id,
        "role": pattern.role,
        "statement": pattern.statement,
        "state": pattern.state,
        "kind": f"{pattern.kind}: {pattern.finding}",
        "focus area": pattern.focus_area,
        "of": triggers_of(pattern.triggers),
        "effect": effect_of(pattern.effect),
        "share": f"{pattern.share:.1%}, {pattern.count} trajectories",
        "reward lost": f"{pattern.reward_cost:.1f}",
        "USD more": f"{pattern.cost_usd:.2f}",
        "stability": None if pattern.confidence is None else f"{pattern.confidence:.2f}",
        "p": None if pattern.p_value is None else f"{pattern.p_value:.2g}",
        "alert": pattern.alert_id,
        "advice": pattern.advice,
        "opened": pattern.opened_at,
        "closed": pattern.closed_at,
        "closed by": pattern.closed_by,
        "reason": pattern.reason,
    }


def triggers_of(triggers: Sequence[Trigger]) -> str:
    """Conditions in words."""
    return " and ".join(f"{each.attribute} is {each.value}" for each in triggers) or "all trajectories of the role"


def effect_of(effect: Effect) -> str:
    """A difference, with its interval where it has one."""
    interval = f", between {effect.low:+.3g} and {effect.high:+.3g}" if effect.low < effect.high else ""
    return f"{effect.measure} {effect.value:+.3g}{interval}"
