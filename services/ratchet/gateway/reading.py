"""Reads requests: small ones at once, large ones in a thread, so that no other call waits for them.

Python runs one thread at a time, and msgspec never lets go in the midst of a value: a large value is therefore read in
steps (`domain.requests`), between which the event loop has its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ratchet.core.rules.chat.links import Digested
from ratchet.dialects.api_dialect import ApiDialect
from ratchet.dialects.requests import CallRequest, read_fields, value_of
from ratchet.gateway.domain.identity import NAMING_MEMBERS

LARGE = 64 * 1024
"""Bytes of a body up to which reading takes less than a few milliseconds, whatever it holds."""


Read = tuple[CallRequest, Mapping[str, Any]]
"""A request, checked, and its members that may name its trajectory. `Any`: agents write what they like."""


class RequestReader:
    """Reads the bodies of calls. One thread reads all large ones: several would leave the loop a smaller share."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reading")

    async def read(self, dialect: ApiDialect, body: bytes, *, named: bool) -> Read:
        """The request that a body is; `named`: its headers name its trajectory. Raises `BadRequest`."""
        if len(body) <= LARGE:
            return _read(dialect, body)
        read = _read if named else _read_with_digests
        return await asyncio.get_running_loop().run_in_executor(self._thread, read, dialect, body)

    def close(self) -> None:
        """Read no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _read(dialect: ApiDialect, body: bytes) -> Read:
    call = dialect.read(read_fields(body))
    return call, {name: value_of(call.fields, name) for name in NAMING_MEMBERS if name in call.fields}


def _read_with_digests(dialect: ApiDialect, body: bytes) -> Read:
    """The digests of its messages are what recognises its trajectory."""
    call, naming = _read(dialect, body)
    return msgspec.structs.replace(call, messages=Digested(call.messages)), naming
