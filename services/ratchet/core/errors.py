"""All errors of Ratchet.

    RatchetError
    ├── ContractError
    │   ├── UnknownSubject      no topic has this subject
    │   └── InvalidMessage      the message breaks its schema
    ├── Unavailable             a passing fault of something we depend on: retry
    │   ├── BusUnavailable
    │   │   └── NotPermitted    the broker's user may not do this
    │   ├── WarehouseUnavailable
    │   └── ObjectsUnavailable
    ├── NotFound                no such role, policy, job, file or object
    ├── Conflict                not now: another writer changed it first, or what it needs is missing yet
    ├── DigestMismatch          the bytes are not the ones that were named
    ├── Unreadable              a stored value is not what its bucket holds
    ├── Rejected                a request that can never succeed as it is
    │   ├── BadRequest          its form is wrong
    │   ├── Forbidden           who asks may not do it
    │   └── WrongState          the state of its object does not allow it
    ├── MissingExtra            an optional part of the package is not installed
    └── ConfigError             a setting is wrong, a port is taken

`str(error)` is one clear line for people. An error of a library is classified once, where it enters. Over HTTP an error
is a status and a code, see `service.problems`.
"""

from __future__ import annotations

from typing import Self


class RatchetError(Exception):
    """Root of the tree."""

    code: str | None = None
    """The error's name for programs, if it has one."""
    param: str | None = None
    """The part of a request that is to blame, if one is."""

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.param = param


class ContractError(RatchetError):
    """A message and the contracts disagree."""


class UnknownSubject(ContractError):
    """No topic has this subject."""


class InvalidMessage(ContractError):
    """A message breaks its schema at `path` (JSON pointer) for `reason`."""

    code = "invalid_message"

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path or '/'}: {reason}", param=path or None)
        self.reason = reason
        self.path = path


class Unavailable(RatchetError):
    """A passing fault of something we depend on: trying again later may help."""

    code = "unavailable"
    quotes = False
    """Whether the message holds another service's own words, which may repeat what it was asked: no log holds them."""

    @property
    def for_log(self) -> str:
        """The message, where a log may hold it."""
        return "the words of another service: they stand in the status, and in no log" if self.quotes else str(self)

    def quoting(self) -> Self:
        """This error, whose message holds another service's own words."""
        self.quotes = True
        return self


class BusUnavailable(Unavailable):
    """The broker did not answer, or refuses for now."""


class NotPermitted(BusUnavailable):
    """The user of this program may not do this on the broker: it passes when its permissions, or its key, change."""


class WarehouseUnavailable(Unavailable):
    """ClickHouse did not answer."""


class WarehouseTooSlow(WarehouseUnavailable):
    """ClickHouse did not answer within the time that the query allows it."""


class ObjectsUnavailable(Unavailable):
    """The object store did not answer."""


class NotFound(RatchetError):
    """No such role, policy, job, file or object."""


class Conflict(RatchetError):
    """Not now: another writer changed it first, or what it needs is missing yet.

    It has no other code: over HTTP this one tells it from `WrongState`.
    """

    code = "conflict"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)


class DigestMismatch(RatchetError):
    """The bytes are not the ones that were named.

    It has no other code: over HTTP this one tells it from `Rejected`.
    """

    code = "digest_mismatch"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)


class Unreadable(RatchetError):
    """A stored value, at `revision`, is not what its bucket holds: damaged, or written by another version."""

    def __init__(self, key: str, revision: int, reason: str, stored: bytes = b"") -> None:
        super().__init__(f"{key} cannot be read: {reason}")
        self.revision = revision
        self.reason = reason
        self.stored = stored
        """The value itself, for code that can read a part of it. No message and no log shows it."""


class Rejected(RatchetError):
    """A request that can never succeed as it is."""


class BadRequest(Rejected):
    """A request has the wrong form: a member is missing, of another type, or out of range."""


class Forbidden(Rejected):
    """Who sends a request is known, and may not do this: the message names the scope that the key lacks."""

    code = "insufficient_scope"


class WrongState(Rejected):
    """The state of the request's object does not allow it."""


class MissingExtra(RatchetError):
    """An optional part of the package is not installed."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the extra `{extra}`: pip install 'ratchet-rl[{extra}]'")
        self.extra = extra


class ConfigError(RatchetError):
    """A setting is wrong, or a port is taken."""
