"""What a start is refused for, before anything is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ratchet.core.errors import ConfigError
from ratchet.local.local_stack.preflight import planned
from ratchet.local.local_stack.settings import StackSettings


def test_a_wrong_setting_names_the_service_and_the_variable(tmp_path: Path) -> None:
    settings = StackSettings(
        directory=tmp_path / "state",
        free_ports=True,
        only=("reward_computer", "trajectory_collector"),
        env={"RATCHET_REWARD_LINGER_S": "soon"},
    )
    before = dict(os.environ)
    with pytest.raises(ConfigError, match=r"reward_computer: wrong setting RATCHET_REWARD_LINGER_S"):
        planned(settings)
    assert dict(os.environ) == before
    assert not (tmp_path / "state").exists()


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no stack can be kept in"):
        planned(StackSettings(directory=tmp_path / "file" / "state", free_ports=True, only=("s3",)))


def test_a_good_plan_is_given_as_it_is(tmp_path: Path) -> None:
    plan = planned(StackSettings(directory=tmp_path, free_ports=True, only=("trajectory_collector",)))
    assert [program.name for program in plan.programs] == ["nats", "s3", "clickhouse", "trajectory_collector"]
    assert list(tmp_path.iterdir()) == []
