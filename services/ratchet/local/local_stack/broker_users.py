"""The broker's users: a key for each program and each agent, and the part of its configuration that knows them.

Each user has an account of its own, which imports of the account with the streams exactly the subjects that the program
may send to. In one account a permission to ask for something would be one to write anywhere: the broker sends its
answer to any subject that the question names, and stores it there. Between accounts an answer comes to who has asked.

A key is an NKEY (Ed25519). The broker's file has the public half; the other one, the seed, lies in a file of its own
that its owner alone can read, and never leaves the program that signs with it. During an exchange of keys a user has
two, and either is good.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ratchet.bus.contracts import Contracts
from ratchet.bus.nats_client import API, IMPORTED_API, Seed, seed_text
from ratchet.bus.permissions import Part, Permissions, permissions_of, permissions_of_part
from ratchet.core.contract import DEFAULT_ROLE
from ratchet.core.errors import BadRequest, ConfigError, Conflict, NotFound, RatchetError
from ratchet.core.rules.arms import ROLE
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.files import PRIVATE, lock_at, write_whole

ADMIN, OPERATOR = "admin", "operator"
"""Who makes streams and buckets, and may do everything; and who has the commands (`cli` in the registry)."""
AGENT_PROGRAM = "client"
"""What an agent sends through, as the registry calls it; its own user here sends for every role."""
USERS_FILE, CONFIG_FILE = "users.json", "users.conf"
LOCK_FILE, EXCHANGE_LOCK = "users.lock", "exchange.lock"
"""Held for a change of the users; and from new keys until the programs have them."""
CONTAINER_SEED = "broker.seed"
"""A container's own seed, in its volume."""
STREAMS_ACCOUNT, ANSWERS = "RATCHET", "_INBOX.>"
"""The account that has the streams and buckets; and where each program's answers come to, in its own account."""
USER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class BrokerUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the broker."""

    keys: tuple[str, ...]
    """Public ones, the newest first: all of them are good."""
    roles: tuple[str, ...] = ()
    """Of an agent; none: a program of ours."""


@dataclass(frozen=True, slots=True)
class BrokerUsers:
    """The users in a directory, which is the broker's own or one that its configuration includes."""

    directory: Path

    @property
    def config(self) -> Path:
        """What the broker's configuration includes."""
        return self.directory / CONFIG_FILE

    def seed_file(self, user: str) -> Path:
        """Where the seed of a user lies."""
        return self.directory / "seeds" / f"{user}.seed"

    def listed(self) -> dict[str, BrokerUser]:
        """All users by name; none where there is no file yet. Raises `ConfigError`."""
        path = self.directory / USERS_FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, BrokerUser])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error

    def user(self, name: str) -> BrokerUser:
        """One of them. Raises `NotFound`."""
        return _known(self.listed(), name)

    def keep_programs(self) -> None:
        """Make the users of our programs that are missing, also where a seed is, and the configuration.

        Raises `ConfigError` or `OSError`.
        """
        with self._changing() as users:
            for name in (ADMIN, *map(user_of, load_contracts().programs)):
                if name not in users or not self.seed_file(name).exists():
                    users[name] = BrokerUser(keys=(self._new_key(name),))

    def add_agent(self, name: str, roles: Iterable[str]) -> Path:
        """A user that sends for these roles alone; its seed file. Raises `BadRequest` or `Conflict`."""
        given = tuple(sorted({*roles}))
        for text, form in ((name, USER_NAME), *((role, ROLE) for role in given if role != "*")):
            if not form.fullmatch(text):
                raise BadRequest(f"{text!r} is not of the form {form.pattern}")
        if not given:
            raise BadRequest("an agent's user is for one role or more")
        with self._changing() as users:
            if name in users or name in load_contracts().programs:
                raise Conflict(f"there is a user {name} already: name another, or `ratchet broker remove` first")
            users[name] = BrokerUser(keys=(self._new_key(name),), roles=given)
        return self.seed_file(name)

    def remove_agent(self, name: str) -> None:
        """Take a user's keys away. Raises `NotFound`, or `BadRequest` for one of our own programs."""
        with self._changing() as users:
            if not _known(users, name).roles:
                raise BadRequest(
                    f"{name} is a program of Ratchet itself: exchange its key by `ratchet broker rotate {name}`"
                )
            del users[name]
        self.seed_file(name).unlink(missing_ok=True)

    def rotate(self, name: str) -> Path:
        """Give a user a new key beside those that it has; its seed file, which has the new one. Raises `NotFound`."""
        with self._changing() as users:
            user = _known(users, name)
            users[name] = msgspec.structs.replace(user, keys=(self._new_key(name, at_once=False), *user.keys))
        return self.seed_file(name)

    def release(self, name: str) -> None:
        """Let a program use the new key: the broker must know it by then. Raises `OSError`."""
        self.next_seed(name).replace(self.seed_file(name))

    def retire(self, name: str) -> int:
        """Take away all keys of a user but the newest; how many.

        Raises `NotFound`, or `Conflict` where an exchange was broken off: the program does not have the newest yet.
        """
        with self._changing() as users:
            user = _known(users, name)
            if self.next_seed(name).exists():
                raise Conflict(f"an exchange of {name}'s key was broken off: run `ratchet broker rotate {name}` first")
            users[name] = msgspec.structs.replace(user, keys=user.keys[:1])
        return len(user.keys) - 1

    def hand_out(self, containers: Path) -> None:
        """Put its user's seed into each container's volume, which is the directory USER/CONTAINER of `containers`.

        Raises `NotFound` or `OSError`.
        """
        users = self.listed()
        for volume in sorted(containers.glob("*/*")):
            _known(users, volume.parent.name)
            write_whole(volume / CONTAINER_SEED, self.seed_file(volume.parent.name).read_bytes(), mode=PRIVATE)

    def next_seed(self, name: str) -> Path:
        """Where the new seed of a user lies until the broker knows its key."""
        return self.seed_file(name).with_suffix(".next")

    def _new_key(self, name: str, *, at_once: bool = True) -> str:
        """A fresh seed in its file; the public key."""
        import nkeys  # noqa: PLC0415 - of the broker's library, which `--help` does not pay for

        seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        public: Any = nkeys.from_seed(bytearray(seed)).public_key  # bytes, whatever nkeys says of their type
        path = self.seed_file(name) if at_once else self.next_seed(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = Seed(seed.decode(), name, API if name == ADMIN else IMPORTED_API)
        write_whole(path, seed_text(held).encode(), mode=PRIVATE)
        return str(public, "ascii")

    @contextmanager
    def _changing(self) -> Iterator[dict[str, BrokerUser]]:
        """The users; as they are at the end they are written, and the configuration with them. Raises `Conflict`."""
        with self._locked(LOCK_FILE):
            users = self.listed()
            yield users
            encoded = msgspec.json.format(msgspec.json.encode(users), indent=1)
            write_whole(self.directory / USERS_FILE, encoded, mode=PRIVATE)
            write_whole(self.config, configuration(users, load_contracts()).encode(), mode=PRIVATE)

    def exchanging(self) -> AbstractContextManager[None]:
        """An exchange of keys, from `rotate` to `release`: two at once would mix their keys. Raises `Conflict`."""
        return self._locked(EXCHANGE_LOCK)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with lock_at(self.directory / name):
                yield
        except BlockingIOError as error:
            raise Conflict(f"another command changes the users in {self.directory}: try again") from error


def broker_users(stack: Path) -> BrokerUsers:
    """Those of the local stack in a directory: beside the broker's data, which backups have, too."""
    return BrokerUsers(stack.resolve() / "data" / "nats")


def user_of(program: str) -> str:
    """The user of a program of the registry."""
    return OPERATOR if program == "cli" else program


def permissions_of_user(contracts: Contracts, name: str, user: BrokerUser) -> Permissions | None:
    """What a user may do; None: everything."""
    if name == ADMIN:
        return None
    if user.roles:
        return permissions_of_agent(contracts, user.roles)
    return permissions_of(contracts, "cli" if name == OPERATOR else name)


def permissions_of_agent(contracts: Contracts, roles: Iterable[str]) -> Permissions:
    """What an agent of these roles may do."""
    return permissions_of_part(contracts, AGENT_PROGRAM, Part("role", frozenset(roles), DEFAULT_ROLE))


def configuration(users: Mapping[str, BrokerUser], contracts: Contracts) -> str:
    """The part of the broker's configuration that has the users: accounts, with what the one with the streams exports.

    What an account may send to another one is imported; a user's permissions say the same once more, for the broker
    tells of what they refuse, and they take consumers out that are another program's.
    """
    permissions = {name: permissions_of_user(contracts, name, user) for name, user in users.items()}
    exported = sorted({subject for granted in permissions.values() if granted for subject in granted.publish})
    exports = ",\n".join(f"      {{service: {json.dumps(subject)}{_answers(subject)}}}" for subject in exported)
    admins = ", ".join(f"{{nkey: {key}}}" for name, user in users.items() if name == ADMIN for key in user.keys)
    others = [_account(name, users[name], granted) for name, granted in sorted(permissions.items()) if granted]
    return (
        "# Written by Ratchet; docs/permissions.md says what each user may do. It holds no secret.\n"
        f"accounts {{\n  {STREAMS_ACCOUNT} {{\n    jetstream: enabled\n    users: [{admins}]\n"
        f"    exports: [\n{exports}\n    ]\n  }}\n{''.join(others)}}}\n"
    )


def _account(name: str, user: BrokerUser, granted: Permissions) -> str:
    imports = ",\n".join(
        f"      {{service: {{account: {STREAMS_ACCOUNT}, subject: {json.dumps(subject)}}},"
        f" to: {json.dumps(_own(subject))}}}"
        for subject in granted.publish
    )
    allowed = {
        "publish": {"allow": [*map(_own, granted.publish)], "deny": [*map(_own, granted.denied)]},
        "subscribe": {"allow": [ANSWERS, *granted.hear]},
    }
    keys = ", ".join(f"{{nkey: {key}}}" for key in user.keys)
    return (
        f"  {json.dumps(name)} {{\n    default_permissions: {json.dumps(allowed)}\n    users: [{keys}]\n"
        f"    imports: [\n{imports}\n    ]\n  }}\n"
    )


def _own(subject: str) -> str:
    """A subject of the account with the streams as the others have it."""
    return IMPORTED_API + subject.removeprefix(API) if subject.startswith(f"{API}.") else subject


def _answers(subject: str) -> str:
    """A pull is answered by many messages."""
    return ", response_type: stream" if ".MSG.NEXT." in subject else ""


def _known(users: Mapping[str, BrokerUser], name: str) -> BrokerUser:
    if name not in users:
        raise NotFound(f"there is no user {name}; there are {', '.join(sorted(users)) or 'none yet'}")
    return users[name]


def main(arguments: Sequence[str]) -> int:
    """`python -m ratchet.local.local_stack.broker_users USERS CONTAINERS`: make what is missing, hand out the seeds."""
    directory, containers = map(Path, arguments)
    users = BrokerUsers(directory)
    try:
        users.keep_programs()
        users.hand_out(containers)
    except (RatchetError, OSError) as error:
        sys.stderr.write(f"broker_users: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
