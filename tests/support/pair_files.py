"""A directory of preference pairs in TRL's format, and a tiny model: what `ratchet rm-train` and `dpo-train` take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.toy_preferences import parrot_chats, parrot_pairs

HELD_OUT = 6
"""Every so many pairs one is held out."""


def write_pair_files(directory: Path) -> Path:
    """`base`, and `data` with 40 pairs to learn from and 8 held out; a parrot repeats the colour."""
    from tests.support.tiny_models import chat_texts, write_tiny_model  # noqa: PLC0415 - torch

    write_tiny_model(directory / "base", chat_texts(parrot_chats()), hidden=64)
    data = directory / "data"
    data.mkdir()
    rows = [{name: pair[name] for name in ("prompt", "chosen", "rejected")} for pair in parrot_pairs()]
    write_lines(data / "train.jsonl", [row for place, row in enumerate(rows) if place % HELD_OUT])
    write_lines(data / "eval.jsonl", rows[::HELD_OUT])
    return directory


def write_lines(file: Path, rows: Sequence[Any]) -> Path:
    """JSON lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
