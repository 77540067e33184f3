"""How `ratchet train` reads the base model that the operator names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratchet.cli.training import hyperparameters, located
from ratchet.core.errors import NotFound


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/tiny").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("named", ["models/tiny", "./models/tiny", "models/tiny/"])
def test_a_directory_is_named_by_its_whole_path(named: str, here: Path) -> None:
    assert located(named, trains_here=False) == str(here / "models/tiny")


@pytest.mark.parametrize("named", [".ratchet/base-model", "./tiny", "../tiny", "~/tiny", "tiny/", "path/to/tiny"])
@pytest.mark.parametrize("trains_here", [True, False])
def test_a_relative_path_to_nowhere_is_refused(named: str, trains_here: bool, here: Path) -> None:
    message = f"base_model (`--base-model`) {named}: there is no such directory in {here}"
    with pytest.raises(NotFound, match=f"^{re.escape(message)}$"):
        located(named, trains_here=trains_here)


@pytest.mark.parametrize("odd", ["./\x00", "/\x00", "./\ud800", "./" + "x" * 5000])
def test_what_can_be_no_path_is_refused_as_one_that_leads_nowhere(odd: str) -> None:
    with pytest.raises(NotFound, match="there is no such directory"):
        located(odd, trains_here=True)
    assert located("x" * 5000, trains_here=True) == "x" * 5000


def test_an_absolute_path_is_looked_for_only_where_the_worker_looks(here: Path) -> None:
    gone = str(here / "gone")
    with pytest.raises(NotFound, match=r"no such directory$"):
        located(gone, trains_here=True)
    assert located(gone, trains_here=False) == gone


@pytest.mark.parametrize("named", ["stable", "tiny", "owner/tiny", "s3://ratchet/policies/a.json"])
def test_what_may_be_a_name_or_uri_is_left_to_the_worker(named: str) -> None:
    assert located(named, trains_here=True) == named


@pytest.mark.parametrize(("typed", "read"), [("1e3", 1000), ("1e-5", 1e-5), ("2.0", 2.0), ("7", 7), ("none", "none")])
def test_a_whole_number_may_have_an_exponent(typed: str, read: object) -> None:
    value = hyperparameters([f"max_steps={typed}"])["max_steps"]
    assert (value, type(value)) == (read, type(read))
