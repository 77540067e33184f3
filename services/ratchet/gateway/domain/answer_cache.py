"""Answers that need no engine: the same policy, asked the same at temperature 0, says the same. Bounded in bytes."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

from ratchet.contract.turn import Sampling

LARGEST = 8
"""An answer larger than this part of the whole cache (one eighth) is not kept."""


class AnswerCache:
    """The most recently used answers. The policy's digest is part of the key, so no promotion can be crossed."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()
        self.size = 0
        """Bytes of the answers that are kept."""

    def takes(self, digest: str, sampling: Sampling) -> bool:
        """Whether such an answer may be kept: not with the cache off, without a digest, or drawn at random."""
        return bool(self._limit and digest) and sampling.temperature <= 0

    def get(self, key: bytes) -> bytes | None:
        """The answer as the engine gave it, or None."""
        kept = self._answers.get(key)
        if kept is None:
            return None
        self._answers.move_to_end(key)
        return kept

    def put(self, key: bytes, sealed: bytes) -> None:
        """Keep an answer; the least recently used ones make room."""
        if len(sealed) > self._limit // LARGEST:
            return
        self.size += len(sealed) - len(self._answers.pop(key, b""))
        self._answers[key] = sealed
        while self.size > self._limit:
            _, dropped = self._answers.popitem(last=False)
            self.size -= len(dropped)

    def __len__(self) -> int:
        return len(self._answers)


def cache_key(digest: str, path: str, body: Mapping[str, Any]) -> bytes:
    """Where the answer of a policy to a request is kept; the order of members means nothing."""
    return hashlib.sha256(msgspec.json.encode([digest, path, body], order="deterministic")).digest()
