"""Reads a file of records, drops what is no good pair, and writes the splits with a report."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.core.contract.schema_report import Dropped, DroppedRecord, InputFile, SchemaReport, Splits
from ratchet.core.errors import Rejected
from ratchet.core.rules.chat.format import ChatError, json_text, text_of
from ratchet.core.rules.redaction import redact
from ratchet.core.rules.texts import same_form
from ratchet.core.service.files import locked
from ratchet.extras.argilla.records import Pair, Reason, Unusable, pair_of
from ratchet.extras.argilla.shuffled import ShuffledRows
from ratchet.extras.importers.reading import Part as Record, Unreadable, parts_of

TRAIN, EVAL, TEST, REPORT = "train.jsonl", "eval.jsonl", "test.jsonl", "schema_report.json"
Part = Literal["prompt", "chosen", "rejected"]
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af"
"""Letters of writing without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")
ENDINGS = (".jsonl", ".json", ".parquet")
_STAGED = ".argilla-export-"
MAX_RECORD = 16 << 20
"""Bytes of one record; a longer one is no record of a conversation."""
NAMED = 3
"""Records that a report names for each reason."""
PROBLEM = 200
"""Characters of a problem that are kept."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What counts as a good pair, and how pairs are split."""

    eval_ratio: float
    test_ratio: float
    min_prompt_tokens: int
    max_prompt_tokens: int
    dedup_by: Sequence[Part]
    anonymize: bool
    shuffle_seed: int


def words(text: str) -> int:
    """Words, punctuation marks and letters of writing without spaces: about the tokens of a text, where no tokenizer
    is named.
    """
    return len(_WORD.findall(text))


def export_pairs(
    file: Path,
    output: Path,
    options: ExportOptions,
    parameters: JsonObject,
    count_tokens: Callable[[str], int] = words,
) -> SchemaReport:
    """Write `train.jsonl`, `eval.jsonl`, `test.jsonl` and the report into `output`.

    They replace those of an earlier export when all are whole. `parameters`: as the report names them. Rows wait in a
    temporary file there. Raises `Rejected` for a file that cannot be read, or changes meanwhile, and for files in
    `output` that no export wrote, `Conflict` while another export writes to `output`, and `OSError`.
    """
    if not file.is_file():
        raise Rejected(f"{file} is a directory, not a file" if file.is_dir() else f"no such file: {file}")
    if output.exists() and not output.is_dir():
        raise Rejected(f"{output} is a file: name a directory to write to")
    if file.suffix.lower() not in ENDINGS:
        raise Rejected(f"{file}: records come in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if file.resolve() in [output.resolve() / name for name in (TRAIN, EVAL, TEST, REPORT)]:
        raise Rejected(f"the export would replace its own input {file}: name another directory")
    output.mkdir(parents=True, exist_ok=True)
    with locked(output):
        if foreign := _foreign(output):
            raise Rejected(f"{output} has {', '.join(foreign)} of something else: name another directory")
        for leftover in output.glob(f"{_STAGED}*"):  # of an export that was killed
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(prefix=_STAGED, dir=output) as directory:
            try:
                report = _staged(file, Path(directory), parameters, _Selection(options, count_tokens))
            except sqlite3.OperationalError as error:
                raise OSError(f"cannot write to {output}: {error}") from error
            _publish(Path(directory), output)
    return report


def _staged(file: Path, directory: Path, parameters: JsonObject, selection: _Selection) -> SchemaReport:
    """All files of an export, in `directory`."""
    before, options = _state(file), selection.options
    with closing(ShuffledRows(directory / "rows.sqlite", options.shuffle_seed)) as rows:
        for record in parts_of(file, MAX_RECORD):
            if isinstance(record.value, Unreadable) and record.value.ends:
                raise Rejected(f"{file}: {record.value.reason}")
            selection.add(record, rows)
        splits = rows.split(options.eval_ratio, options.test_ratio)
        for name in Splits.__struct_fields__:
            with (directory / f"{name}.jsonl").open("w", encoding="utf-8") as lines:
                lines.writelines(f"{body}\n" for body in rows.rows(name))
                lines.flush()
                os.fsync(lines.fileno())
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if _state(file) != before:
        raise Rejected(f"{file} has changed while it was read")
    valid = selection.total - sum(selection.dropped.values())
    report = SchemaReport(
        total=selection.total,
        valid=valid,
        valid_ratio=valid / selection.total if selection.total else 0.0,
        dropped=Dropped(**{reason: selection.dropped[reason] for reason in get_args(Reason)}),
        splits=splits,
        parameters=parameters,
        seed=options.shuffle_seed,
        input=InputFile(name=file.name, sha256=digest, size=before[0]),
        redacted=dict(selection.redacted),
        first_dropped={reason: selection.first[reason] for reason in get_args(Reason) if reason in selection.first},
    )
    (directory / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return report


def _foreign(output: Path) -> list[str]:
    """Names of the files that would be replaced and that no export wrote: ours are never there without a report."""
    names = [name for name in (TRAIN, EVAL, TEST, REPORT) if (output / name).exists()]
    with suppress(OSError, msgspec.DecodeError):
        decode((output / REPORT).read_bytes(), SchemaReport)
        return []
    return names


def _publish(staged: Path, output: Path) -> None:
    """Put the files in their places. Trainings need `train.jsonl`, so they never meet splits of two exports."""
    names = (TRAIN, TEST, EVAL, REPORT)
    for name in names:
        (output / name).unlink(missing_ok=True)
    for name in reversed(names):
        (staged / name).replace(output / name)


def _state(file: Path) -> tuple[int, int, int]:
    state = file.stat()
    return state.st_size, state.st_mtime_ns, state.st_ino


class _Selection:
    """The good pairs of a file, and why the other records make none."""

    def __init__(self, options: ExportOptions, count_tokens: Callable[[str], int]) -> None:
        self.options = options
        self._count_tokens = count_tokens
        self.total = 0
        self.dropped: Counter[Reason] = Counter()
        self.first: dict[Reason, list[DroppedRecord]] = {}
        """By reason the first records that were dropped for it."""
        self.redacted: Counter[str] = Counter()

    def add(self, record: Record, rows: ShuffledRows) -> None:
        """Keep the pair of a record, or count why it has none."""
        self.total += 1
        try:
            if isinstance(record.value, Unreadable):
                raise Unusable("malformed", record.value.reason)
            self._keep(self._redacted(pair_of(record.value)), rows)
        except Unusable as error:
            self._drop(record.number, error)
        except (ChatError, Rejected, RecursionError) as error:  # not to be written as JSON, or not to be searched
            self._drop(record.number, Unusable("malformed", str(error)))

    def _drop(self, number: int, why: Unusable) -> None:
        self.dropped[why.reason] += 1
        first = self.first.setdefault(why.reason, [])
        if len(first) < NAMED:
            first.append(DroppedRecord(number=number, problem=why.problem[:PROBLEM]))

    def _keep(self, pair: Pair, rows: ShuffledRows) -> None:
        if pair.chosen == pair.rejected:
            raise Unusable("identical", "both answers are equal")
        prompt = "\n".join(text_of(message.get("content")) for message in pair.prompt)
        tokens = self._count_tokens(prompt)
        if tokens < self.options.min_prompt_tokens:
            raise Unusable("too_short", f"its prompt has {tokens} tokens")
        if tokens > self.options.max_prompt_tokens:
            raise Unusable("too_long", f"its prompt has {tokens} tokens")
        parts = {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
        key = json_text([parts[name] for name in self.options.dedup_by])
        same_prompt = json_text(
            [[message["role"], same_form(text_of(message.get("content")))] for message in pair.prompt]
        )
        if not rows.add(key, same_prompt, json_text(parts)):
            raise Unusable("duplicate", f"an earlier one has the same {', '.join(self.options.dedup_by)}")

    def _redacted(self, pair: Pair) -> Pair:
        if not self.options.anonymize:
            return pair
        # Without the name of who wrote a message; a result keeps its tool's.
        sides = [
            [
                {key: part for key, part in message.items() if key != "name" or message["role"] == "tool"}
                for message in side
            ]
            for side in (pair.prompt, pair.chosen, pair.rejected)
        ]
        redacted = redact(sides)
        self.redacted.update(redacted.counts)
        return Pair(*redacted.value)
