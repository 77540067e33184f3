"""Unpacks a body that came packed: gzip and deflate, in bounded parts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

PART = 256 * 1024
"""Most bytes of one part, however little it was packed to."""

_PLAIN = frozenset({b"", b"identity"})
_GZIP = frozenset({b"gzip", b"x-gzip"})


class NotUnpacked(Exception):
    """The body is packed in another way than it says, or in one that the request did not ask for."""


class UnknownEncoding(NotUnpacked):
    """There is no way to unpack it."""


class Unpacker:
    """Of one body, by its content-encoding. Raises `UnknownEncoding`."""

    def __init__(self, encoding: bytes) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in _PLAIN | _GZIP | {b"deflate"}:
            raise UnknownEncoding(f"an encoding that was not asked for: {encoding[:40].decode('latin-1')}")
        self._zlib = None
        """None before the first byte."""

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """Parts of the body that these bytes unpack to, each made when it is asked for."""
        if self._encoding in _PLAIN:
            yield packed
            return
        if not packed:
            return
        if self._zlib is None:
            # deflate comes in zlib's frame, as the standard wants it, or bare, as many programs send it.
            bits = zlib.MAX_WBITS if packed[0] & 0x0F == zlib.DEFLATED else -zlib.MAX_WBITS
            self._zlib = zlib.decompressobj(16 + zlib.MAX_WBITS if self._encoding in _GZIP else bits)
        while True:
            try:
                part = self._zlib.decompress(packed, PART)
            except zlib.error as error:
                raise NotUnpacked(f"a body that is not {self._encoding.decode()}") from error
            if self._zlib.unused_data:
                raise NotUnpacked(f"bytes after the end of a body in {self._encoding.decode()}")
            if part:
                yield part
            packed = self._zlib.unconsumed_tail
            if not packed and len(part) < PART:
                return

    def end(self) -> None:
        """The body ends here: an empty one is whole. Raises `NotUnpacked` when a part of it is missing."""
        if self._zlib is not None and not self._zlib.eof:
            raise NotUnpacked(f"a body in {self._encoding.decode()} that is cut off")
