"""Which reward is a trajectory's reward is stated once: the view for operators has the text that services join."""

from __future__ import annotations

import pytest

from ratchet.core.stores.history import REWARD_COLUMNS, latest_rewards
from ratchet.core.stores.schema import schema_statements


def test_the_view_of_latest_rewards_is_what_services_join() -> None:
    columns = [name for name in REWARD_COLUMNS if name != "is_rewarded"]
    assert view("latest_rewards") == squeezed(latest_rewards(*columns, where="")[1:-1])


def test_a_condition_is_one_on_the_columns_of_rewards() -> None:
    """The result has columns of the same names, which ClickHouse would take instead."""
    sql = latest_rewards("total", where="role = {role:String} AND at > {since:DateTime64(3)}")
    assert "WHERE w.role = {role:String} AND w.at > {since:DateTime64(3)}" in sql


def test_a_column_that_no_reward_has_is_refused() -> None:
    with pytest.raises(KeyError):
        latest_rewards("worth")


def view(name: str) -> str:
    """The query of a view of the schema."""
    return squeezed(schema_statements()[name].removeprefix(f"CREATE VIEW IF NOT EXISTS {name} AS"))


def squeezed(sql: str) -> str:
    """Without the white space that means nothing."""
    return " ".join(sql.split()).replace("( ", "(").replace(" )", ")")
