"""`make env`: random secrets, private file, nothing overwritten."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.compose import REPOSITORY
from tools.environment.make_env import assignments, main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(REPOSITORY / ".env.example", tmp_path)
    return tmp_path


def test_every_secret_is_filled_with_a_value_of_its_own(folder: Path) -> None:
    main(folder)

    example = assignments((folder / ".env.example").read_text())
    written = assignments((folder / ".env").read_text())
    secrets = [written[name] for name, value in example.items() if value == ""]
    assert written.keys() == example.keys()
    assert all(len(value) == 40 and value.isalnum() and value[0].isalpha() for value in secrets)
    assert len(set(secrets)) == len(secrets)


def test_file_is_private(folder: Path) -> None:
    main(folder)

    assert (folder / ".env").stat().st_mode & 0o777 == 0o600


def test_second_run_changes_nothing(folder: Path) -> None:
    main(folder)
    before = (folder / ".env").read_text()

    main(folder)

    assert (folder / ".env").read_text() == before


def test_new_name_is_added_and_known_values_stay(folder: Path) -> None:
    (folder / ".env").write_text("CLICKHOUSE_PASSWORD=mine\n")

    main(folder)

    written = assignments((folder / ".env").read_text())
    assert written["CLICKHOUSE_PASSWORD"] == "mine"
    assert written["GRAFANA_PASSWORD"]


def test_env_is_never_committed() -> None:
    ignored = (REPOSITORY / ".gitignore").read_text().splitlines()

    assert ".env" in ignored
