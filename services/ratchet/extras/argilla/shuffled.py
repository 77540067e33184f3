"""Rows on disk while they are counted: without duplicates, split by prompt, in an order that a seed draws."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ratchet.core.contract.schema_report import Splits

_TRAIN, _EVAL, _TEST = "train", "eval", "test"
_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE rows (digest BLOB NOT NULL, prompt BLOB NOT NULL, place BLOB NOT NULL, body TEXT NOT NULL);
CREATE UNIQUE INDEX same ON rows (digest);
CREATE INDEX prompts ON rows (prompt);
CREATE TABLE splits (prompt BLOB PRIMARY KEY, split TEXT NOT NULL);
"""


class ShuffledRows:
    """Rows in a database file; memory stays bounded whatever their number. The order in which they come changes
    nothing, but for which of several duplicates stays."""

    def __init__(self, file: Path, seed: int) -> None:
        self._database = sqlite3.connect(file)
        self._database.executescript(_TABLES)
        self._seed = seed

    def close(self) -> None:
        """The file can be removed."""
        self._database.close()

    def add(self, key: str, prompt: str, body: str) -> bool:
        """Keep a row, unless one with the same key is there; says whether it was kept."""
        row = (self._drawn("", key), self._drawn("prompt", prompt), self._drawn("row", body), body)
        return self._database.execute("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?)", row).rowcount == 1

    def split(self, eval_ratio: float, test_ratio: float) -> Splits:
        """Decide on the split of each prompt; returns the rows of each.

        Prompts come in a drawn order. One goes to the test, else to the evaluation, where all of its rows fit; all
        others train. So the sizes are those of the ratios as nearly as prompts allow, and another record may move
        others; an export of a snapshot (`domain.trl.Split`) is the other way round.
        """
        (total,) = self._database.execute("SELECT COUNT(*) FROM rows").fetchone()
        room = {_TEST: round(test_ratio * total), _EVAL: round(eval_ratio * total), _TRAIN: total}
        sizes = dict.fromkeys(room, 0)
        prompts = self._database.execute("SELECT prompt, COUNT(*) FROM rows GROUP BY prompt ORDER BY prompt")

        def decided() -> Iterator[tuple[bytes, str]]:
            for prompt, count in prompts:
                name = next(name for name in room if sizes[name] + count <= room[name])
                sizes[name] += count
                yield prompt, name

        self._database.executemany("INSERT INTO splits VALUES (?, ?)", decided())
        return Splits(train=sizes[_TRAIN], eval=sizes[_EVAL], test=sizes[_TEST])

    def rows(self, split: str) -> Iterator[str]:
        """The rows of a split, in their drawn order."""
        query = "SELECT body FROM rows JOIN splits USING (prompt) WHERE split = ? ORDER BY place"
        return (body for (body,) in self._database.execute(query, (split,)))

    def _drawn(self, kind: str, text: str) -> bytes:
        return hashlib.sha256(f"{self._seed}:{kind}:{text}".encode()).digest()
