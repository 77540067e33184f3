"""Which call a request repeats: one that failed a moment ago, or that its client gave up before this gateway did."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

CALLS = 20_000
"""Open calls that are remembered at once, and failed ones; the oldest make room."""


@dataclass(frozen=True, slots=True, eq=False)
class _Open(Generic[T]):
    """A call on its way, with what its repetition would send: the call holds the body anyway."""

    value: T
    scope: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Failed(Generic[T]):
    """A call that failed, of this gateway or of another one."""

    value: T
    mark: str
    """Of scope and body: says nothing of either."""
    length: int
    """Bytes of the body."""
    until_s: float
    """Until when it waits for its repetition."""


class _Places(Generic[K, T]):
    """Values by place, several in each, in the order in which they came; the oldest of all make room."""

    def __init__(self) -> None:
        self._all: OrderedDict[int, tuple[K, T]] = OrderedDict()
        self._places: dict[K, list[T]] = {}

    def add(self, number: int, place: K, value: T) -> None:
        self._all[number] = place, value
        self._places.setdefault(place, []).append(value)
        if len(self._all) > CALLS:
            self.take(next(iter(self._all)))

    def at(self, place: K) -> list[T]:
        return self._places.get(place, [])

    def take(self, number: int) -> T | None:
        place, value = self._all.pop(number, (None, None))
        if place is None or value is None:
            return None
        values = self._places[place]
        values.remove(value)
        if not values:
            del self._places[place]
        return value

    def __len__(self) -> int:
        return len(self._all)


class Retries(Generic[T]):
    """Remembers calls by scope and body until they are answered, or have waited long enough after their failure.

    A failed call has one repetition: identical calls that failed side by side are repeated one by one.
    """

    def __init__(self, now_s: Callable[[], float], wait_s: float) -> None:
        self._now_s = now_s
        self._wait_s = wait_s
        self._open = _Places[tuple[str, int], _Open[T]]()
        """By scope and length of the body: only calls of one length are compared."""
        self._failed = _Places[int, Failed[T]]()
        """By length of the body."""

    def open(self, scope: str, body: bytes, value: T) -> None:
        """A call is on its way."""
        self._open.add(id(value), (scope, len(body)), _Open(value, scope, body))

    def close(self, value: T) -> None:
        """A call was answered."""
        self._open.take(id(value))

    def fail(self, value: T) -> Failed[T] | None:
        """A call failed, or its client gave it up: its repetition may come soon. None when it is no open call."""
        call = self._open.take(id(value))
        if call is None:
            return None
        mark = mark_of(call.scope, call.body)
        return self.learn_failed(value, mark, len(call.body), self._now_s() + self._wait_s)

    def learn_failed(self, value: T, mark: str, length: int, until_s: float) -> Failed[T]:
        """A call failed, here or at another gateway."""
        failed = Failed(value, mark, length, until_s)
        self._failed.add(id(value), length, failed)
        return failed

    def forget(self, mark: str, length: int, is_it: Callable[[T], bool]) -> None:
        """A failed call has been repeated at another gateway."""
        for failed in [
            failed_call
            for failed_call in self._failed.at(length)
            if failed_call.mark == mark and is_it(failed_call.value)
        ]:
            self._failed.take(id(failed.value))

    def take_failed(self, scope: str, body: bytes) -> Failed[T] | None:
        """The failed call that this body repeats, which has no other repetition then."""
        same = self._failed.at(len(body))
        if not same:
            return None
        mark, now = mark_of(scope, body), self._now_s()
        for failed in [late for late in same if late.until_s < now]:
            self._failed.take(id(failed.value))
        waiting = next((waiting for waiting in same if waiting.mark == mark), None)
        return waiting and self._failed.take(id(waiting.value))

    def take_open(self, scope: str, body: bytes) -> T | None:
        """The open call that this body repeats, unless there are two: its client says that it gave one up."""
        same = [call for call in self._open.at((scope, len(body))) if call.body == body]
        if len(same) != 1:
            return None
        self._open.take(id(same[0].value))
        return same[0].value

    def __len__(self) -> int:
        return len(self._open) + len(self._failed)


def mark_of(scope: str, body: bytes) -> str:
    """What gateways compare instead of scope and body."""
    digest = hashlib.blake2b(body, digest_size=16, key=hashlib.blake2b(scope.encode(), digest_size=16).digest())
    return f"f{digest.hexdigest()}"
