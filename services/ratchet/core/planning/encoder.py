"""Texts as vectors: hashed words, pairs of words and trigrams of characters. Frozen, and the same on every machine."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Of float32, which the types of numpy's operators lose."""

FEATURES = 512
"""Numbers of a text's vector."""
MOST_CHARS = 4000
"""What stands after that does not change what is planned: an instruction of a megabyte would take a second."""
_WORD = re.compile(r"\w+")


@lru_cache(maxsize=256)
def encode(text: str) -> Array:
    """A vector of length 1; of length 0 for a text without words. Read-only: callers share it."""
    vector = np.zeros(FEATURES, np.float32)
    for gram in _grams(text[:MOST_CHARS].lower()):
        digest = zlib.crc32(gram.encode("utf-8", "surrogatepass"))
        vector[digest % FEATURES] += 1.0 if digest & 0x8000_0000 else -1.0
    length = float(np.linalg.norm(vector))
    if length:
        vector /= np.float32(length)
    vector.flags.writeable = False
    return vector


def _grams(text: str) -> Iterator[str]:
    words = _WORD.findall(text)
    for word in words:
        yield f"w {word}"
    for first, second in pairwise(words):
        yield f"p {first} {second}"
    for word in words:
        padded = f"_{word}_"
        for start in range(len(padded) - 2):
            yield f"c {padded[start : start + 3]}"
