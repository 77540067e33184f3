"""Reads a file of records, drops what is no good pair, and writes the splits with a report."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.contract.schema_report import Dropped, InputFile, SchemaReport, Splits
from ratchet.datasets.argilla.reading import records_in
from ratchet.datasets.argilla.records import Pair, Reason, Unusable, pair_of
from ratchet.datasets.argilla.shuffled import ShuffledRows
from ratchet.errors import Rejected
from ratchet.rules.chat.format import ChatError, json_text, text_of
from ratchet.rules.redaction import Redactor
from ratchet.service.files import staged, write_whole

REPORT = "schema_report.json"
Part = Literal["prompt", "chosen", "rejected"]
_WORD = re.compile(r"\w+|[^\w\s]")


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
    """Words and punctuation marks: about the tokens of a text, where no tokenizer is named."""
    return len(_WORD.findall(text))


def export_pairs(
    file: Path, output: Path, options: ExportOptions, parameters: JsonObject, count_tokens: Callable[[str], int] = words
) -> SchemaReport:
    """Write `train.jsonl`, `eval.jsonl`, `test.jsonl` and the report into `output`, each at once when it is whole.

    `parameters`: as the report names them. Rows wait in a temporary file there. Raises `Rejected` for a file that
    cannot be read, and `OSError`.
    """
    if not file.is_file():
        raise Rejected(f"there is no file {file}")
    output.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=".argilla-export-", dir=output) as directory,
        closing(ShuffledRows(Path(directory) / "rows.sqlite", options.shuffle_seed)) as rows,
    ):
        selection = _Selection(rows, options, count_tokens)
        for record in records_in(file):
            selection.add(record)
        splits = rows.split(options.eval_ratio, options.test_ratio)
        for name in Splits.__struct_fields__:
            with staged(output / f"{name}.jsonl") as partial, partial.open("w", encoding="utf-8") as lines:
                lines.writelines(f"{body}\n" for body in rows.rows(name))
    valid = selection.total - sum(selection.dropped.values())
    report = SchemaReport(
        total=selection.total,
        valid=valid,
        valid_ratio=valid / selection.total if selection.total else 0.0,
        dropped=Dropped(**{reason: selection.dropped[reason] for reason in get_args(Reason)}),
        splits=splits,
        parameters=parameters,
        seed=options.shuffle_seed,
        input=_digest(file),
        redacted=dict(selection.redacted),
    )
    write_whole(output / REPORT, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return report


class _Selection:
    """The good pairs of a file, and why the others are none."""

    def __init__(self, rows: ShuffledRows, options: ExportOptions, count_tokens: Callable[[str], int]) -> None:
        self._rows = rows
        self._options = options
        self._count_tokens = count_tokens
        self._redactor = Redactor() if options.anonymize else None
        self.total = 0
        self.dropped: Counter[Reason] = Counter()
        self.redacted: Counter[str] = Counter()

    def add(self, record: object) -> None:
        """Keep its pair, or count why not."""
        self.total += 1
        try:
            self._keep(self._redacted(pair_of(record)))
        except Unusable as error:
            self.dropped[error.reason] += 1
        except (ChatError, Rejected, RecursionError):  # not to be written as JSON, or not to be searched
            self.dropped["malformed"] += 1

    def _keep(self, pair: Pair) -> None:
        if pair.chosen == pair.rejected:
            raise Unusable("identical")
        prompt = "\n".join(text_of(message.get("content")) for message in pair.prompt)
        tokens = self._count_tokens(prompt)
        if tokens < self._options.min_prompt_tokens:
            raise Unusable("too_short")
        if tokens > self._options.max_prompt_tokens:
            raise Unusable("too_long")
        parts = {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
        key = json_text([parts[name] for name in self._options.dedup_by])
        same_prompt = json_text([[one["role"], " ".join(text_of(one.get("content")).split())] for one in pair.prompt])
        if not self._rows.add(key, same_prompt, json_text(parts)):
            raise Unusable("duplicate")

    def _redacted(self, pair: Pair) -> Pair:
        if self._redactor is None:
            return pair
        redacted = self._redactor.redact([pair.prompt, pair.chosen, pair.rejected])
        self.redacted.update(redacted.counts)
        return Pair(*redacted.value)


def _digest(file: Path) -> InputFile:
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return InputFile(name=file.name, sha256=digest, size=file.stat().st_size)
