"""A worker process's place among those of one service, and its end of the channel to their supervisor.

The channel is a pair of sockets that no other process holds. The supervisor asks, the worker answers, each with frames:
a length, then MessagePack. When the supervisor is gone the channel ends, and so the worker knows that it must end too.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec
import structlog

from ratchet.core.service.reports import Report

log = structlog.get_logger()

LENGTH = struct.Struct("<I")


class Question(msgspec.Struct, frozen=True, array_like=True):
    """What the supervisor asks: for a report, with or without metrics."""

    number: int
    metrics: bool


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """The report that a question asked for."""

    number: int
    report: Report


class Unfit(msgspec.Struct, frozen=True, array_like=True, tag="unfit"):
    """The worker cannot run: a setting is wrong."""

    reason: str


class Seat(msgspec.Struct, frozen=True):
    """What a worker learns when it starts."""

    number: int
    """1 is the first."""
    workers: int
    """How many there are."""
    port: int
    """The one on which all of them listen."""
    channel: int = -1
    """File descriptor of its end of the channel, once there is one."""

    @property
    def text(self) -> str:
        """The seat as an argument of a command."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> Seat:
        """The seat that an argument names."""
        return msgspec.json.decode(text, type=cls)

    def open_channel(self) -> socket.socket:
        """The worker's end; to be opened once."""
        channel = socket.socket(fileno=self.channel)
        channel.set_inheritable(False)
        return channel


class Reporting(Protocol):
    """What the state of a process is known by."""

    async def report(self, *, metrics: bool) -> Report:
        """The state of the process now."""
        ...


class SupervisorLink:
    """Answers the supervisor for as long as it lives."""

    def __init__(self, channel: socket.socket, state: Reporting, orphaned: Callable[[], object]) -> None:
        """`orphaned`: called once the supervisor is gone."""
        self._channel = channel
        self._state = state
        self._orphaned = orphaned
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Answer until stopped, or until the supervisor is gone."""
        reader, writer = await asyncio.open_unix_connection(sock=self._channel.dup())
        answering = asyncio.create_task(self._answer(reader, writer))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({answering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        answering.cancel()
        await asyncio.wait({answering})
        writer.close()

    async def stop(self) -> None:
        """Return from `run`."""
        self._stopping.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = msgspec.msgpack.Decoder(Question)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                question = decoder.decode(await read_frame(reader))
                writer.write(frame(Answer(question.number, await self._state.report(metrics=question.metrics))))
                await writer.drain()
        if not self._stopping.is_set():
            log.warning("the supervisor is gone: this worker ends")
            self._orphaned()


def refuse(channel: socket.socket, reason: str) -> None:
    """Tell the supervisor, outside every event loop, that this worker cannot run."""
    channel.setblocking(True)
    with suppress(OSError):  # the supervisor is gone
        channel.sendall(frame(Unfit(reason)))


def frame(message: Question | Answer | Unfit) -> bytes:
    """A message as it goes through the channel."""
    encoded = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(encoded)) + encoded


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next message. Raises `IncompleteReadError` where the channel ends."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return await reader.readexactly(length)
