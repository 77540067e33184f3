"""`ratchet audit`: who did what, and whether the log is whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
import typer

from ratchet.cli.connections import connected, objects_of, settings_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory, OptionalRole, since_of
from ratchet.cli.output import console, print_answer, print_table
from ratchet.core.contract.audit import AuditEntry, AuditHead
from ratchet.core.errors import BadRequest
from ratchet.core.rules.audit_check import ChainCheck
from ratchet.core.stores.audit_store import AuditStore, audit_entries, public_keys

app = typer.Typer(no_args_is_help=True)

HOT = timedelta(days=29)
"""The stream has at least what is younger."""
SHOWN = 20
"""Problems of a chain that are shown at most."""


class ProblemOut(msgspec.Struct, frozen=True, kw_only=True):
    """What does not hold in a chain."""

    number: int
    reason: str


class ChainOut(msgspec.Struct, frozen=True, kw_only=True):
    """The check of a program's chain."""

    program: str
    whole: bool
    entries: int
    newest: datetime | None
    """When the newest entry was written, by its program's clock."""
    unsigned: int
    """Entries after the newest signed head: a change of these would not show yet."""
    keys: list[str]
    """Public ones that have signed."""
    problems: list[ProblemOut]


class VerifyOut(msgspec.Struct, frozen=True, kw_only=True):
    """The check of the whole audit log."""

    whole: bool
    chains: list[ChainOut]


class EntriesOut(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the audit log, newest first."""

    entries: list[AuditEntry]


@app.command("list")
def list_entries(
    since: Annotated[str, typer.Option(help="Only from then on: so long ago, or an instant.", metavar="TIME")] = "30d",
    actor: Annotated[str | None, typer.Option(help="Only of this name, or a part of it, or of this key's id.")] = None,
    act: Annotated[str | None, typer.Option(help="Only of this name, such as `promote`.")] = None,
    role: OptionalRole = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many of the newest to show.")] = 50,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Show who did what, newest first: acts of operators and services, and what was read."""
    endpoints, begin = locate(directory), since_of(since)

    async def gather() -> list[AuditEntry]:
        async with aclosing(_entries(endpoints, begin)) as entries:
            matching = [
                entry
                async for entry, _ in entries
                if entry.at >= begin
                and (actor is None or actor in entry.actor or actor == entry.key_id)
                and (act is None or act == entry.act)
                and (role is None or role == entry.role)
            ]
            return [*{entry.hash: entry for entry in matching}.values()]

    newest = sorted(asyncio.run(gather()), key=lambda entry: entry.at, reverse=True)[:limit]
    rows = [
        (entry.at, entry.actor, entry.act, entry.outcome, entry.role, _objects(entry), entry.service, entry.number)
        for entry in newest
    ]
    columns = ("at", "who", "act", "outcome", "role", "of", "where", "number")
    print_answer(EntriesOut(entries=newest), as_json, lambda: print_table(columns, rows, "no such entry"))


@app.command()
def verify(
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="The public key of a program, in hexadecimal, where its data lies elsewhere; may be repeated."
        ),
    ] = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Check the chain of every program against its signed heads; exit code 1: it was changed, or is not whole."""
    for digits in key or ():
        if len(digits) != 64 or not all(digit in "0123456789abcdef" for digit in digits):
            raise BadRequest(f"{digits[:80]!r} is no public key: 64 hexadecimal digits")
    endpoints = locate(directory)
    result = asyncio.run(_verified(endpoints, {*(key or ()), *public_keys(endpoints.directory / "data")}))
    print_answer(result, as_json, lambda: _show(result.chains))
    raise typer.Exit(ExitCode.DONE if result.whole else ExitCode.FAILED)


async def _entries(endpoints: Endpoints, begin: datetime | None) -> AsyncGenerator[tuple[AuditEntry, bool]]:
    """The entries of the archive, then those of the stream, and whether they are of the archive.

    `begin`: those from then on, perhaps more; of the archive what the stream may have forgotten.
    """
    store, forgotten = AuditStore(objects_of(endpoints)), (datetime.now(UTC) - HOT).date()
    for day, _, uri in await asyncio.to_thread(store.days):
        is_needed = begin is None or begin.date() <= day <= forgotten
        for entry in await asyncio.to_thread(store.entries, uri) if is_needed else ():
            yield entry, True
    async with connected(settings_of(endpoints)) as bus, aclosing(audit_entries(bus, begin or 1)) as streamed:
        async for stored in streamed:
            yield stored.entry, False


async def _verified(endpoints: Endpoints, keys: Collection[str]) -> VerifyOut:
    checks: dict[str, ChainCheck] = {}
    # First the heads: an entry that is written meanwhile has none of them.
    stored = await asyncio.to_thread(AuditStore(objects_of(endpoints)).heads)
    heads = [head for _, head in stored if head is not None]
    async with aclosing(_entries(endpoints, None)) as entries:
        async for entry, is_archived in entries:
            check = checks.setdefault(entry.service, ChainCheck(entry.service))
            (check.add_archived if is_archived else check.add_streamed)(entry)
    chains: list[ChainOut] = []
    for program in sorted({*checks, *(head.service for head in heads)}):
        check, own = checks.get(program) or ChainCheck(program), [head for head in heads if head.service == program]
        check.end(own, keys)
        chains.append(_chain_out(check, own))
    return VerifyOut(whole=all(chain.whole for chain in chains), chains=chains)


def _chain_out(check: ChainCheck, heads: Iterable[AuditHead]) -> ChainOut:
    newest = check.newest
    return ChainOut(
        program=check.service,
        whole=not check.problems,
        entries=check.entries,
        newest=newest.at.astimezone(UTC) if newest is not None else None,
        unsigned=max(0, newest.number - check.signed) if newest is not None else 0,
        keys=sorted({head.key for head in heads}),
        problems=[ProblemOut(number=problem.number, reason=problem.reason) for problem in check.problems],
    )


def _objects(entry: AuditEntry) -> str:
    named = ", ".join(entry.objects or ())
    more = (entry.count or 0) - len(entry.objects or ())
    failed = f"of {entry.of}, status {entry.status}" if entry.of is not None else ""
    return " ".join(part for part in (named, f"and {more} more" if named and more > 0 else "", failed) if part)


def _show(chains: Iterable[ChainOut]) -> None:
    rows = [
        (chain.program, "whole" if chain.whole else "NOT WHOLE", chain.entries, chain.unsigned, chain.newest)
        for chain in chains
    ]
    print_table(("program", "chain", "entries", "not signed yet", "newest"), rows, "no entries yet")
    for chain in chains:
        for problem in chain.problems[:SHOWN]:
            console.print(f"{chain.program} {problem.number}: {problem.reason}", markup=False)
        if len(chain.problems) > SHOWN:
            console.print(f"{chain.program}: {len(chain.problems) - SHOWN} more", markup=False)
