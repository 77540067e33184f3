"""nats-py's client without some of its faults, with the credentials of a seed file, and with words for refusals.

The broker says apart from all answers that a message was refused: the caller would wait for an answer that never comes.
Here a refusal ends, at once, every request that waits on its subject.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats.errors
import structlog
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.protocol import command

from ratchet.bus.settings import SEED_SETTING
from ratchet.bus.tasks import expire
from ratchet.core.errors import ConfigError, NotPermitted

log = structlog.get_logger()

UNSENT_BYTES = 1024 * 1024
"""Bytes that wait for the operating system, beyond which unconfirmed messages are dropped."""
API, IMPORTED_API = "$JS.API", "STREAMS.API"
"""Where the broker's API is: in the account that has the streams, and in every other one, which imports of it what its
program may use. There the first name would lead to streams of the account's own, of which it has none."""

_REFUSAL = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
"""In the broker's words, which nats-py hands on in lower case."""
_REVOKED = re.compile("authorization violation|authentication (expired|revoked)")
_SEED = re.compile(r"^SU[A-Z2-7]{56}$", re.MULTILINE)
_NAMED = re.compile(r"^# (user|api): ([\w$.-]{1,64})$", re.MULTILINE)


class Refused(nats.errors.Error, NotPermitted):
    """The broker refuses a subject: an error of nats-py, whose users classify those already, and of our tree."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Seed:
    """What a seed file holds."""

    seed: str
    """Of the NKEY, which signs what the broker asks for."""
    user: str | None = None
    """The user's name, where the file says it."""
    api: str = API
    """Where its account has the broker's API."""


def seed_text(seed: Seed) -> str:
    """The content of a seed file."""
    return (
        f"# Who has this may do on the broker what its user may.\n# user: {seed.user}\n# api: {seed.api}\n{seed.seed}\n"
    )


def read_seed(path: Path, setting: str = SEED_SETTING) -> Seed:
    """What a seed file holds, which `setting` names. Raises `ConfigError`, which quotes nothing of it."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise ConfigError(f"the seed file {path} ({setting}) cannot be read: {reason}") from None
    seed = _SEED.search(text)
    if seed is None:
        raise ConfigError(f"the seed file {path} ({setting}) holds no NKEY seed of a user (SU...)")
    return Seed(seed[0], **dict(_NAMED.findall(text)))


class Connection(Nats):
    """nats-py's client without four of its faults (nats-py 2.16).

    Its reading ends for good with the PONG to a ping whose sender has stopped waiting for it, as after a broker that
    was frozen for a moment (`Client._process_pong`). And it tells its credentials to any server that asks for no TLS,
    also where the url is `tls://`: to one in the middle, for example (`Client._process_connect_init`). A handshake that
    breaks off it never gets over (`Client._close`). And it is closed for good where the broker takes its key away,
    though it may have another one by now (`Client._process_err`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._seed_file: Path | None = None
        self._seed_setting = SEED_SETTING
        self._user: str | None = None
        self.api = API
        """Where the broker's API is for this program's account."""
        self._asking: defaultdict[str, set[asyncio.Timeout]] = defaultdict(set)
        """Requests that wait, by subject in lower case."""
        self._deaf: Refused | None = None
        """No answer can come: the user may not listen where they come to."""
        self._watching: dict[str, tuple[str, Callable[[Refused], None]]] = {}
        """Subjects, and who hears that one is refused, by subject in lower case."""
        self.login_refused = False
        """Whether the broker refused this program's key when it was asked last."""

    def log_in_with(self, path: Path, setting: str = SEED_SETTING) -> dict[str, str]:
        """The options of `connect` for a seed file, which is read again before each further connection: a key that is
        exchanged counts from then on. `setting` names the file. Raises `ConfigError`."""
        held = read_seed(path, setting)
        self._seed_file, self._seed_setting, self._user, self.api = path, setting, held.user, held.api
        return {"nkeys_seed_str": held.seed}

    def jetstream(self, **opts: Any) -> JetStreamContext:
        """nats-py's, of the streams that this program's account may use."""
        return super().jetstream(**{"prefix": self.api, **opts})

    def when_refused(self, subject: str, on_refusal: Callable[[Refused], None] | None) -> None:
        """From now on `on_refusal` hears that the broker refuses what is sent to a subject; None ends that."""
        if on_refusal is None:
            self._watching.pop(subject.lower(), None)
        else:
            self._watching[subject.lower()] = subject, on_refusal

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,  # noqa: ASYNC109 - nats-py's signature
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """nats-py's request; raises `Refused` as soon as the broker says so."""
        if self._deaf is not None:
            raise self._deaf
        key, scope = subject.lower(), asyncio.timeout(None)
        self._asking[key].add(scope)
        try:
            async with scope:
                return await super().request(subject, payload, timeout, old_style, headers)
        except TimeoutError:
            if scope.expired():
                raise self._deaf or self._refused("publish", subject) from None
            raise
        finally:
            self._asking[key].discard(scope)
            if not self._asking[key]:
                del self._asking[key]

    async def _process_err(self, err_msg: str) -> None:
        """What the broker says apart from answers. nats-py would never come back after its key was taken away."""
        if self.is_connected and _REVOKED.search(err_msg):
            log.warning("the broker does not know this program's key any more", user=self._user)
            await self._process_op_err(nats.errors.AuthorizationError())
            return
        if refusal := _REFUSAL.search(err_msg):
            self._end_waiting(*refusal.groups())
        await super()._process_err(err_msg)

    def _end_waiting(self, verb: str, subject: str) -> None:
        """End what waits for a subject that is refused; where answers come to is refused: whatever waits."""
        if verb == "publish":
            waiting = self._asking.get(subject, set())
        elif subject.startswith(f"{self._inbox_prefix.decode().lower()}."):
            self._deaf = self._refused("listen to", subject)
            waiting = {scope for scopes in self._asking.values() for scope in scopes}
        else:
            waiting = set[asyncio.Timeout]()
        for scope in waiting:
            expire(scope)
        if subject in self._watching:
            named, on_refusal = self._watching[subject]
            on_refusal(self._refused("publish" if verb == "publish" else "listen to", named))

    def _refused(self, verb: str, subject: str) -> Refused:
        who = f"the broker's user {self._user}" if self._user else "this program's user of the broker"
        return Refused(
            f"{who} may not {verb} {subject}: docs/permissions.md lists what each may; {self._seed_setting} names"
            " the file with the user's key"
        )

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """nats-py's, in half of its time, which was a sixth of what a reader of small messages cost."""
        headers: dict[str, str] = {}
        for line in raw.decode(errors="replace").split("\r\n"):
            name, colon, value = line.partition(":")
            words = name.split()
            if colon and len(words) == 1 and name.isascii():
                headers[words[0]] = value.strip(" \t\r\n\v\f")
        return headers

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_connect_init(self) -> None:
        self.login_refused = False
        try:
            await super()._process_connect_init()
        except (nats.errors.Error, OSError, TimeoutError) as error:
            self.login_refused = _REVOKED.search(str(error).lower()) is not None
            if self._transport is not None:  # nats-py leaves it open, and makes another one for each attempt
                self._transport.close()
            self._transport = None  # it would wait for ever for the end of one whose handshake broke off
            raise

    def _connect_command(self) -> bytes:
        """The first thing that is said to a server. Raises `SecureConnRequiredError` before it would go unprotected."""
        server = self._current_server
        if server is not None and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise nats.errors.SecureConnRequiredError
        self._deaf = None
        if self._seed_file is not None:
            try:
                self._nkeys_seed_str = read_seed(self._seed_file, self._seed_setting).seed
                self._setup_nkeys_seed_connect()
            except ConfigError as error:  # perhaps it is being exchanged: the key that was read before may do
                log.warning("the key that was read before is used", reason=str(error))
        return super()._connect_command()

    def send_now(self, subject: str, body: bytes) -> bool:
        """Hand a message to the operating system before this returns; False when it cannot take it now.

        `publish` leaves that to a task of its own, and costs three times as much.
        """
        writer: Any = getattr(self._transport, "_io_writer", None)
        if not self.is_connected or writer is None or len(body) > self.max_payload:
            return False
        if writer.transport.get_write_buffer_size() > UNSENT_BYTES:
            return False
        writer.write(command.pub_cmd(subject, "", body))
        return True
