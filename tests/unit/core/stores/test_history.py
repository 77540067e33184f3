"""Which reward is a trajectory's reward is stated once: the view for operators has the text that services join."""

from __future__ import annotations

import pytest

from ratchet.core.resources import resource_dir
from ratchet.core.stores.history import REWARD_COLUMNS, latest_rewards
from ratchet.core.stores.usage import hourly
from ratchet.core.stores.warehouse import statements


def test_the_view_of_latest_rewards_is_what_services_join() -> None:
    script = (resource_dir("deploy") / "clickhouse" / "009_latest_rewards.sql").read_text()
    columns = [name for name in REWARD_COLUMNS if name != "is_rewarded"]
    view = " ".join(f"CREATE OR REPLACE VIEW latest_rewards AS {latest_rewards(*columns, where='')[1:-1]}".split())
    assert [" ".join(statement.split()) for statement in statements(script)] == [view]


def test_a_condition_is_one_on_the_columns_of_rewards() -> None:
    """The result has columns of the same names, which ClickHouse would take instead."""
    sql = latest_rewards("total", where="role = {role:String} AND at > {since:DateTime64(3)}")
    assert "WHERE w.role = {role:String} AND w.at > {since:DateTime64(3)}" in sql


def test_a_column_that_no_reward_has_is_refused() -> None:
    with pytest.raises(KeyError):
        latest_rewards("worth")


def test_the_view_of_usage_is_what_the_command_asks() -> None:
    script = (resource_dir("deploy") / "clickhouse" / "012_calls.sql").read_text()
    view = " ".join(f"CREATE OR REPLACE VIEW hourly_usage AS {hourly()}".split())
    assert squeezed(statements(script)[-1]) == squeezed(view)


def squeezed(sql: str) -> str:
    """Without the white space that means nothing."""
    return " ".join(sql.split()).replace("( ", "(").replace(" )", ")")
