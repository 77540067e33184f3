"""A TCP proxy in front of a server, whose connections a test may cut or silence."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ratchet.bus.tasks import end

CHUNK = 1 << 16


class Proxy:
    """Listens on `port` for a server on `behind`; passes everything on unless it is cut or silenced."""

    def __init__(self, port: int, behind: int, *, renames: bool = False) -> None:
        """`renames`: the server answers to its own address only, so requests for this one's are made ones for that."""
        self.port = port
        self._behind = behind
        self._renamed = (f":{port}\r\n".encode(), f":{behind}\r\n".encode()) if renames else (b"", b"")
        self._open: set[asyncio.StreamWriter] = set()
        self._handling: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Cut everything, and listen no longer."""
        if self._server is not None:
            self._server.close()
        self.cut()
        self._passing.set()
        await asyncio.gather(*self._handling)

    def cut(self) -> None:
        """End every connection with a reset, and each new one, until `heal`."""
        self._refusing = True
        for writer in self._open:
            writer.transport.abort()

    def silence(self) -> None:
        """Keep the connections, and pass nothing on, until `heal`."""
        self._passing.clear()

    def heal(self) -> None:
        """Pass everything on again."""
        self._refusing = False
        self._passing.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handling = asyncio.create_task(self._handle(reader, writer))
        self._handling.add(handling)
        handling.add_done_callback(self._handling.discard)
        await handling

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            onward, answering = await asyncio.open_connection("127.0.0.1", self._behind)
        except OSError:  # the server is down
            writer.transport.abort()
            return
        self._open |= {writer, answering}
        ways = [
            asyncio.create_task(self._pass(onward, writer, (b"", b""))),
            asyncio.create_task(self._pass(reader, answering, self._renamed)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*ways)
            for side in (writer, answering):
                self._open.discard(side)
                side.close()
                with suppress(OSError):
                    await side.wait_closed()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, renamed: tuple[bytes, bytes]
    ) -> None:
        with suppress(OSError):  # reset by either side: the other one sees its end
            while content := await reader.read(CHUNK):
                await self._passing.wait()
                writer.write(content.replace(*renamed) if renamed[0] else content)
                await writer.drain()
