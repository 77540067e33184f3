"""`ratchet broker`: the broker's users, their keys and what they may do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ratchet.cli.audited import record_change
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, checked_roles
from ratchet.cli.output import errors, print_answer, print_dry_run, print_table
from ratchet.core.errors import BusUnavailable
from ratchet.core.rules.access import EVERY_ROLE
from ratchet.local.local_stack.broker_users import ADMIN, USER_NAME, BrokerUsers, broker_users, permissions_of_user
from ratchet.local.local_stack.orphans import reload_broker
from ratchet.local.local_stack.state import StackRecord, read_record

if TYPE_CHECKING:
    from ratchet.bus.connection import Bus

app = typer.Typer(no_args_is_help=True)

UsersDirectory = Annotated[
    Path | None,
    typer.Option("--users", help="The folder with users and keys; by default that of the stack."),
]
Names = Annotated[list[str] | None, typer.Argument(help="Users; by default all.")]
KNOWN_S, AGAIN_S = 10.0, 0.5
"""Longest wait until the broker knows a new key, and the pause before it reads its users once more."""


def checked_name(context: typer.Context, name: str) -> str:
    """The name as it is. Raises `typer.BadParameter` for a text that can be no new user's."""
    if not context.resilient_parsing and not USER_NAME.fullmatch(name):
        raise typer.BadParameter(
            f"{name!r} cannot be a user's name: it begins with a letter or a digit, and has lower-case letters, digits,"
            " - and _, at most 64"
        )
    return name


def checked_agent_roles(context: typer.Context, roles: list[str]) -> list[str]:
    """Roles as they are, `*` among them. Raises `typer.BadParameter`."""
    checked_roles(context, [role for role in roles if role != EVERY_ROLE])
    return roles


class UserOut(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the broker."""

    name: str
    roles: tuple[str, ...]
    """Of an agent; none: a program of Ratchet's."""
    keys: int
    """How many are good: two while they are exchanged."""
    seed_file: str
    publish: tuple[str, ...] | None = None
    """Subjects that it may send to; null: everything."""
    denied: tuple[str, ...] = ()
    """Of these the ones that it may not."""


class UsersOut(msgspec.Struct, frozen=True, kw_only=True):
    """The users of a broker."""

    users: list[UserOut]


@app.command("list")
def list_users(users_directory: UsersDirectory = None, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """List the broker's users, and where their keys lie."""
    users = _users(users_directory, directory)
    listed = UsersOut(users=[_out(users, name) for name in users.listed()])
    rows = [(user.name, " ".join(user.roles), user.keys, user.seed_file) for user in listed.users]
    print_answer(listed, as_json, lambda: print_table(("user", "roles", "keys", "seed file"), rows, "no users yet"))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A user, as `ratchet broker list` shows it.")],
    users_directory: UsersDirectory = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Show the subjects that a user may send to. Reading is asking the broker's API, so it stands among them."""
    shown = _out(_users(users_directory, directory), name, whole=True)
    lines = (
        ["everything"]
        if shown.publish is None
        else [*shown.publish, *(f"but not {subject}" for subject in shown.denied)]
    )
    print_answer(shown, as_json, "\n".join(lines))


@app.command()
def add(
    name: Annotated[
        str,
        typer.Argument(
            help="What the broker calls the agent: a letter or a digit, then lower-case letters, digits, - and _.",
            callback=checked_name,
        ),
    ],
    role: Annotated[
        list[str],
        typer.Option(help="A role that it works in; may be given again. `*`: every one.", callback=checked_agent_roles),
    ],
    users_directory: UsersDirectory = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Make a user for an agent: it sends trajectories, feedback and preferences of its roles, and reads nothing.

    The agent gets the file with its key: `RATCHET_NATS_SEED_FILE` names it there.
    """
    users = _users(users_directory, directory)
    if dry_run:
        print_dry_run(f"add {name} to {users.config}", {"name": name, "roles": role}, as_json)
        return
    record_change(directory, "add_broker_user", [name, *role])
    users.add_agent(name, role)
    record = _reload(users, users_directory, directory, how_often=", twice, a second apart")
    if record is not None:
        asyncio.run(_heard(record, users, name))
    made = _out(users, name)
    print_answer(made, as_json, made.seed_file)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="An agent's user.")],
    users_directory: UsersDirectory = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Take an agent's key away: the broker ends its connections at once."""
    users = _users(users_directory, directory)
    gone = _out(users, name)
    if dry_run:
        print_dry_run(f"remove {name} from {users.config}", gone, as_json)
        return
    record_change(directory, "remove_broker_user", [name])
    users.remove_agent(name)
    _reload(users, users_directory, directory)
    print_answer(gone, as_json, f"{name} is removed")


@app.command()
def rotate(
    names: Names = None,
    users_directory: UsersDirectory = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Give users new keys, beside the old ones, which stay good until `ratchet broker retire`.

    Programs read their seed files again whenever they connect: nothing is restarted, and nothing that is sent is lost.
    """
    users = _users(users_directory, directory)
    chosen = _chosen(users, names)
    if dry_run:
        print_dry_run(f"exchange keys in {users.directory}", {"users": chosen}, as_json)
        return
    record_change(directory, "rotate_broker_keys", chosen)
    with users.exchanging():
        for name in chosen:
            users.rotate(name)
        record = _reload(users, users_directory, directory)
        if record is not None and chosen:
            asyncio.run(_known(record, users.next_seed(chosen[-1])))
        for name in chosen:
            users.release(name)
    exchanged = UsersOut(users=[_out(users, name) for name in chosen])
    print_answer(exchanged, as_json, f"new keys: {', '.join(chosen)}; the old ones are good, too")
    if not as_json:
        errors.print(
            "give agents elsewhere their new seed files; then `ratchet broker retire` takes the old keys away",
            markup=False,
        )


@app.command()
def retire(
    names: Names = None,
    users_directory: UsersDirectory = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Take all keys of users away but the newest. Who still has an old one comes back with the one in its seed file."""
    users = _users(users_directory, directory)
    chosen = _chosen(users, names)
    if dry_run:
        print_dry_run(f"take old keys out of {users.config}", {"users": chosen}, as_json)
        return
    record_change(directory, "retire_broker_keys", chosen)
    try:
        taken = sum(users.retire(name) for name in chosen)
    finally:
        _reload(users, users_directory, directory)
    left = UsersOut(users=[_out(users, name) for name in chosen])
    print_answer(left, as_json, f"{taken} old keys are taken away")


def _users(given: Path | None, directory: Path) -> BrokerUsers:
    return broker_users(directory) if given is None else BrokerUsers(given)


def _chosen(users: BrokerUsers, names: list[str] | None) -> list[str]:
    """Those that are named, or all. Raises `NotFound` before anything is changed."""
    for name in names or ():
        users.user(name)
    return names or [*users.listed()]


def _out(users: BrokerUsers, name: str, *, whole: bool = False) -> UserOut:
    from ratchet.core.service.contracts import load_contracts  # noqa: PLC0415 - it reads every schema

    user = users.user(name)
    granted = permissions_of_user(load_contracts(), name, user) if whole else None
    return UserOut(
        name=name,
        roles=user.roles,
        keys=len(user.keys),
        seed_file=str(users.seed_file(name)),
        publish=granted.publish if granted is not None else None,
        denied=granted.denied if granted is not None else (),
    )


def _reload(users: BrokerUsers, given: Path | None, directory: Path, how_often: str = "") -> StackRecord | None:
    """Have the running broker of the stack read its users again; the stack's record, None where none runs."""
    record = read_record(directory) if given is None else None
    if not reload_broker(record):
        if given is not None:
            signal = f"`docker compose kill -s HUP nats`{how_often}"
            errors.print(f"have the broker read {users.config} again: {signal}", markup=False)
        return None
    return record


async def _known(record: StackRecord, seed_file: Path) -> None:
    """Return once the broker takes a new key. Raises `BusUnavailable`."""
    try:
        async with _connected(record, seed_file):
            pass
    except BusUnavailable as error:
        raise BusUnavailable(f"the new keys are not in use: {error}; the old ones stay good") from error


async def _heard(record: StackRecord, users: BrokerUsers, name: str) -> None:
    """Return once the broker answers a new user. Raises `BusUnavailable`.

    nats-server 2.15 takes its key at once, and serves what its account imports only after another reading of the users.
    """
    until_s = time.monotonic() + KNOWN_S
    async with _connected(record, users.seed_file(name)) as bus:
        while (reason := await unanswered(bus.extent)) is not None:
            if time.monotonic() >= until_s:
                again = f"`ratchet broker remove {name}`, then add it again"
                raise BusUnavailable(f"the broker knows {name} and does not answer it: {reason}; {again}")
            reload_broker(record)
            await asyncio.sleep(AGAIN_S)


async def unanswered(extent: Callable[[str], Awaitable[object]]) -> str | None:
    """Why the broker does not answer a user, whose `Bus.extent` this is; None where it does."""
    from nats.js.errors import NotFoundError  # noqa: PLC0415 - with the broker's library

    try:
        async with asyncio.timeout(AGAIN_S):
            await extent("RL_TRAJECTORIES")
    except (BusUnavailable, TimeoutError) as error:
        if isinstance(error.__cause__, NotFoundError):  # that there is no such stream yet is an answer
            return None
        return str(error) or f"nothing came within {AGAIN_S} s"
    return None


@asynccontextmanager
async def _connected(record: StackRecord, seed_file: Path) -> AsyncIterator[Bus]:
    """The stack's broker, for who has this key. Raises `BusUnavailable`."""
    import structlog  # noqa: PLC0415 - with the broker's library

    from ratchet.bus.connection import Bus, Patience  # noqa: PLC0415 - it needs the broker's library
    from ratchet.bus.settings import BusSettings  # noqa: PLC0415
    from ratchet.core.service.contracts import load_contracts  # noqa: PLC0415

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    settings = BusSettings(record.env["RATCHET_NATS_URL"], seed_file)
    patience = Patience(deadline_s=KNOWN_S, quiet=True)
    bus = await Bus.connect(settings, name=ADMIN, contracts=load_contracts(), patience=patience)
    try:
        yield bus
    finally:
        await bus.close()
