"""Takes the gateway's own key out of what a server answers: some repeat it in their errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from urllib.parse import quote_from_bytes

from ratchet.core.service.asgi import Headers

MASK = b"***"
SHORTEST = 6
"""Bytes of a key. What is shorter is no secret but a word like `none`, or `x`, which errors are full of."""
_OF_KEYS = (b"authorization", b"x-api-key")


class KeyMask:
    """Knows the keys among the headers that go with every request."""

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        """`headers`: by lower-case name."""
        keys = [headers[name].split()[-1] for name in _OF_KEYS if headers.get(name, b"").split()]
        self._spellings = [spelling for key in keys if len(key) >= SHORTEST for spelling in _spellings(key)]

    def masked(self, raw: bytes) -> bytes:
        """The bytes with `MASK` in the place of each key."""
        for spelling in self._spellings:
            raw = raw.replace(spelling, MASK)
        return raw

    def masked_headers(self, headers: Headers) -> Headers:
        """The headers with masked values."""
        return [(name, self.masked(value)) for name, value in headers]

    def masked_events(self, events: list[bytes]) -> list[bytes]:
        """The events of a stream, those that may be errors masked."""
        if not any(b"error" in event for event in events):
            return events
        return [self.masked(event) if b"error" in event else event for event in events]


def _spellings(key: bytes) -> Iterable[bytes]:
    """The key as it is, in JSON, in JSON as some libraries write it (`\\/`, `\\u003d`), and in a URL.

    The longest first: no spelling cuts another one up.
    """
    in_json = json.dumps(key.decode("latin-1"))[1:-1].encode()
    in_html = in_json
    for letter in b"<>&='":
        in_html = in_html.replace(bytes([letter]), b"\\u%04x" % letter)
    url = quote_from_bytes(key, safe="").encode()
    return sorted({key, in_json, in_json.replace(b"/", b"\\/"), in_html, url}, key=len, reverse=True)
