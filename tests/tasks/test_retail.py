"""tau-trait's one-action tasks: the action that is right is right for tau-trait's own tools, and nothing else is."""

from __future__ import annotations

import importlib
import json
import os
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from tools.learning.worlds.retail import OFFERED, retail

try:
    version("tau-trait")
except PackageNotFoundError:
    pytest.skip("no tau-trait here: `make tasks`", allow_module_level=True)


def test_what_is_shown_is_right_and_tau_traits_own_tool_takes_it() -> None:
    world = retail(0)
    os.environ.setdefault("OPENAI_API_KEY", "none")
    load = importlib.import_module("tau_trait.envs.retail.data").load_data
    data, cancelled = load(), set[str]()
    tools: list[Any] = importlib.import_module("tau_trait.envs.retail.tools").ALL_TOOLS
    by_name = {tool.get_info()["function"]["name"]: tool for tool in tools}
    for shown in world.shown:
        function = shown.messages[-1]["tool_calls"][0]["function"]
        episode = shown.task.begin()
        episode.answer(shown.messages[-1])
        assert episode.verdict().success
        arguments = json.loads(function["arguments"])
        if arguments["order_id"] not in cancelled:  # some requests are about one order
            assert json.loads(by_name[function["name"]].invoke(data, **arguments))["status"] == "cancelled"
        cancelled.add(arguments["order_id"])


def test_orders_of_held_out_requests_never_occur_in_training() -> None:
    world = retail(0)
    orders = [
        {number for one in some for number in re.findall("#W[0-9]+", one.begin().opening()[0]["content"])}
        for some in (world.tasks, world.exam)
    ]
    assert len(world.tasks) > 25
    assert len(world.exam) > 25
    assert not orders[0] & orders[1]
    assert [tool["function"]["name"] for tool in world.tasks[0].tools] == [*OFFERED]
