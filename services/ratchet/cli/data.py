"""`ratchet data`: data made elsewhere, checked and written as files that trainings read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer
from msgspec.structs import asdict

from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import AsJson
from ratchet.cli.output import errors, print_answer, print_facts, progress
from ratchet.core.contract.schema_report import SchemaReport
from ratchet.core.rules.model_hub import stay_local
from ratchet.extras.argilla.export import ExportOptions, Part, export_pairs, words

app = typer.Typer(no_args_is_help=True)

WARNED, REFUSED = 0.95, 0.90
"""Shares of valid records below which the export warns, and says no."""


@app.callback()
def data() -> None:
    """Data made elsewhere, as files that trainings read."""


@app.command("argilla-export")
def argilla_export(
    input_file: Annotated[Path, typer.Option("--input", help="Records of Argilla: .jsonl, .json or .parquet.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The directory to write to; it may hold an earlier export.",
        ),
    ],
    form: Annotated[Literal["trl"], typer.Option("--format", help="TRL's preference format, as messages.")] = "trl",
    train_ratio: Annotated[float, typer.Option(min=0, max=1, help="Share of train.jsonl.")] = 0.9,
    eval_ratio: Annotated[float, typer.Option(min=0, max=1, help="Share of eval.jsonl.")] = 0.05,
    test_ratio: Annotated[float, typer.Option(min=0, max=1, help="Share of test.jsonl.")] = 0.05,
    min_prompt_toks: Annotated[int, typer.Option(min=0, help="Fewest tokens of a prompt.")] = 3,
    max_prompt_toks: Annotated[int, typer.Option(min=1, help="Most tokens of a prompt.")] = 2048,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A model's directory: its tokens count. Otherwise words and punctuation do.")
    ] = None,
    dedup_by: Annotated[
        str, typer.Option(help="What makes two records equal: prompt, chosen, rejected, joined by `+`.")
    ] = "prompt+chosen+rejected",
    anonymize: Annotated[
        bool,
        typer.Option(
            "--anonymize",
            help="Placeholders for secrets, mail addresses, phones, cards; no authors. Names in a text stay.",
        ),
    ] = False,
    shuffle_seed: Annotated[int, typer.Option(help="Draws the order and the splits.")] = 42,
    as_json: AsJson = False,
) -> None:
    """Write the preference pairs of Argilla's records as train.jsonl, eval.jsonl, test.jsonl and schema_report.json.

    Exit code 1: less than 90 % of the records are valid. Below 95 % it warns.
    """
    if abs(train_ratio + eval_ratio + test_ratio - 1) > 1e-6:
        raise typer.BadParameter("--train-ratio, --eval-ratio and --test-ratio must add up to 1")
    if train_ratio == 0:
        raise typer.BadParameter("--train-ratio 0 leaves nothing to train on")
    if min_prompt_toks > max_prompt_toks:
        raise typer.BadParameter(f"--min-prompt-toks {min_prompt_toks} is above --max-prompt-toks {max_prompt_toks}")
    parts = tuple(dict.fromkeys(dedup_by.split("+")))
    if not set(parts) <= set(get_args(Part)):
        raise typer.BadParameter(f"--dedup-by {dedup_by}: name prompt, chosen and rejected, joined by `+`")
    options = ExportOptions(
        eval_ratio,
        test_ratio,
        min_prompt_toks,
        max_prompt_toks,
        cast("tuple[Part, ...]", parts),
        anonymize,
        shuffle_seed,
    )
    parameters: dict[str, Any] = {
        "format": form,
        "train_ratio": train_ratio,
        "eval_ratio": eval_ratio,
        "test_ratio": test_ratio,
        "min_prompt_toks": min_prompt_toks,
        "max_prompt_toks": max_prompt_toks,
        "tokenizer": None if tokenizer is None else str(tokenizer),
        "dedup_by": "+".join(parts),
        "anonymize": anonymize,
    }
    with progress("checking records", quiet=as_json):
        report = export_pairs(input_file, output, options, parameters, _counter(tokenizer))
    print_answer(report, as_json, lambda: show_report(report, output))
    judge(report)


def judge(report: SchemaReport) -> None:
    """Warn of many dropped records, and fail for too many."""
    if report.valid_ratio >= WARNED:
        return
    worst = ", ".join(f"{count} {reason}" for reason, count in asdict(report.dropped).items() if count) or "no records"
    for reason, records in report.first_dropped.items():
        for record in records:
            place = f"{report.input.name}:{record.number}"
            errors.print(f"{place}: {reason.replace('_', ' ')}: {record.problem}", markup=False, soft_wrap=True)
    no_go = report.valid_ratio < REFUSED
    wish = "no-go, at least 90 % must be; the files are written all the same" if no_go else "95 % should be"
    errors.print(f"{report.valid_ratio:.1%} of {report.total} records are valid ({worst}): {wish}")
    if no_go:
        raise typer.Exit(ExitCode.FAILED)


def show_report(report: SchemaReport, output: Path) -> None:
    """The report for people."""
    print_facts(
        {"read": report.total}
        | {reason.replace("_", " "): count for reason, count in asdict(report.dropped).items() if count}
        | {str(output / f"{name}.jsonl"): count for name, count in asdict(report.splits).items()}
    )


def _counter(tokenizer: Path | None) -> Callable[[str], int]:
    if tokenizer is None:
        return words
    stay_local()
    from ratchet.core.chat_templates.template import load_tokenizer  # noqa: PLC0415 - it takes seconds

    loaded = load_tokenizer(tokenizer)
    return lambda text: len(loaded(text, add_special_tokens=False)["input_ids"])
