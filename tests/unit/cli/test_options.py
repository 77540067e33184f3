"""What commands make of single options and files, and of the limits of a key."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import typer
from hypothesis import given, strategies as st

from ratchet.cli.__main__ import main
from ratchet.cli.contract import read_proposal
from ratchet.cli.deadletters import AT_ONCE, near
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.keys import limits_of
from ratchet.cli.options import json_file, json_in, since_of
from ratchet.cli.training import hyperparameters, read_request
from ratchet.core.contract.http.keys import LimitsOut
from ratchet.core.errors import NotFound, Rejected


@pytest.mark.parametrize(("text", "hours"), [("90m", 1.5), ("12h", 12), ("7d", 168), ("2w", 336)])
def test_a_span_counts_from_now(text: str, hours: float) -> None:
    before = datetime.now(UTC)
    since = since_of(text)
    assert before <= since + timedelta(hours=hours) <= datetime.now(UTC)


@pytest.mark.parametrize("text", ["2026-11-20", "2026-11-20T00:00:00", "2026-11-20T01:00:00+01:00"])
def test_an_instant_is_one_of_utc(text: str) -> None:
    assert since_of(text) == datetime(2026, 11, 20, tzinfo=UTC)


@given(st.text() | st.from_regex(r"\d{1,8}[mhdw]", fullmatch=True))
def test_any_other_text_is_refused_as_a_parameter(text: str) -> None:
    with suppress(typer.BadParameter):
        assert since_of(text).tzinfo is UTC


DEEP = b"[" * 100_000 + b"]" * 100_000


def test_a_document_is_read(tmp_path: Path) -> None:
    file = tmp_path / "document.json"
    file.write_text('{"a": [1, null]}')
    assert json_file(file) == {"a": [1, None]}


@pytest.mark.parametrize("text", [DEEP, b"{", b"\xff", b""], ids=["deep", "torn", "not text", "empty"])
def test_what_is_no_json_is_refused_in_one_line(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"^standard input is not JSON: "):
        json_in(text, "standard input")
    file = tmp_path / "document.json"
    file.write_bytes(text)
    for read in (json_file, read_request, partial(read_proposal, subject=None)):
        with pytest.raises(Rejected, match="is not JSON: "):
            read(file)


def test_a_file_that_cannot_be_read_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(NotFound):
            json_file(path)


def test_a_hyperparameter_that_nests_too_deeply_is_text() -> None:
    assert hyperparameters([f"note={DEEP.decode()}"]) == {"note": DEEP.decode()}


@pytest.mark.parametrize(
    ("name", "options", "because"),
    [
        ("rewards.csv", [], "must end in .jsonl or .parquet"),
        ("rewards", [], "must end in .jsonl or .parquet"),
        ("rewards.parquet", ["--format", "jsonl"], "would not be jsonl"),
    ],
)
def test_a_name_that_promises_another_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, options: list[str], because: str
) -> None:
    target = tmp_path / name
    code = main(["export", "rewards", "-o", str(target), "--dir", str(tmp_path), *options])
    assert code == ExitCode.USAGE
    assert because in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not target.exists()


@pytest.mark.parametrize(
    ("limits", "shown"),
    [
        (None, None),
        (LimitsOut(), None),
        (LimitsOut(requests_per_minute=60), "60 requests/min"),
        (LimitsOut(tokens_per_minute=1_500_000, usd_per_day=0.5), "1500000 tokens/min, 0.5 USD/day"),
    ],
)
def test_limits_are_shown_with_their_units(limits: LimitsOut | None, shown: str | None) -> None:
    assert limits_of(limits) == shown


def test_letters_that_lie_far_apart_are_not_read_together() -> None:
    """Else a command on the oldest and the newest one reads, and holds in memory, everything between them."""
    assert list(near([5 * AT_ONCE, 1, AT_ONCE, AT_ONCE + 1])) == [[1, AT_ONCE], [AT_ONCE + 1], [5 * AT_ONCE]]
    assert list(near([])) == []


@pytest.mark.parametrize("dollars", ["nan", "inf", "1e400", "0", "-1"])
def test_a_limit_that_is_no_sum_of_money_makes_no_key(dollars: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "bot", "--scope", "view", "--usd-per-day", dollars]) != ExitCode.DONE
    assert "US dollars above 0" in " ".join(capsys.readouterr().err.split())
