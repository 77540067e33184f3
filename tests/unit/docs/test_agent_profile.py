"""The tools of an agent that trains are those of the services as they are."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from tests.support.pages import ROOT
from tools.docs.agent_profile import FILE, main

PROFILE: dict[str, Any] = json.loads(FILE.read_text())
INPUTS: dict[str, dict[str, Any]] = {tool["name"]: tool["input_schema"] for tool in PROFILE["tools"]}


def test_profile_is_what_the_services_say() -> None:
    assert main(["--check"]) == 0


@pytest.mark.parametrize("name", INPUTS)
def test_input_of_a_tool_is_a_schema_that_needs_no_other_file(name: str) -> None:
    jsonschema_rs.meta.validate(INPUTS[name])
    assert "#/components/" not in json.dumps(INPUTS[name])
    assert not jsonschema_rs.validator_for(INPUTS[name]).is_valid({"no such member": 1})


def test_documented_request_is_an_input_of_start_training() -> None:
    request = json.loads((ROOT / "contracts/http/examples/coordinator/JobIn.json").read_text())
    start = jsonschema_rs.validator_for(INPUTS["start_training"])
    assert start.is_valid(request | {"dry_run": True})
    assert not start.is_valid(request | {"algorithm": 1})


def test_no_tool_needs_more_than_the_scopes_to_view_and_train() -> None:
    assert PROFILE["scopes"] == ["train", "view"]
