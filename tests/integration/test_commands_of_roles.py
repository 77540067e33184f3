"""Commands with a key for one role: they read what is of it, and what is of another role is as if it were not there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ratchet.core.contract import named_id
from ratchet.core.contract.policy_manifest import ADAPTER, PolicyManifest
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.policies import publish_policy
from tests.support.callers import coordinator_of
from tests.support.command_lines import Shell, shell
from tests.support.console_data import store
from tests.support.messages import AT, trajectory, turn
from tests.support.running import connected, listening, prepared_objects, prepared_warehouse
from tests.support.servers import variables
from tests.support.training import promote, registered

OWN, OTHER, CHILD = (named_id("trajectory", name) for name in ("own", "other", "child"))
KEYS = {"own": ["view:support"], "every": ["view"], "gives": ["feedback:support"]}
COUNTED = {"trajectories": 1, "turns": 0, "rewards": 0, "feedback": 0}


@pytest.fixture
async def ratchet(shared_settings: SharedSettings, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Shell]:
    """Commands with the key for `support`; of its run a sub-agent has another role."""
    facts = [
        trajectory("own"),
        trajectory("other", role="billing"),
        trajectory("child", role="billing", parent_trajectory_id=OWN),
        turn("open", role="billing"),
    ]
    async with (
        prepared_warehouse(shared_settings) as warehouse,
        connected(shared_settings) as bus,
        listening(coordinator_of(KEYS)) as url,
    ):
        await store(warehouse, *facts)
        await promote(bus, registered(1))
        await promote(bus, registered(1, role="billing", name="billing@1-dddddddd"))
        env = {**variables(shared_settings), "RATCHET_COORDINATOR_URL": url, "RATCHET_API_KEY": "own"}
        with shell(env, capsys) as typed:
            yield typed


async def test_trajectory_is_shown_to_a_key_of_its_role_alone(ratchet: Shell) -> None:
    for name in (OWN, OWN[:8], "latest", "support@latest"):
        shown = await ratchet.json("trajectories", "show", name)
        assert (shown["trajectory"]["trajectory_id"], shown["run"]) == (OWN, [])
    absent = named_id("trajectory", "absent")
    for other in (OTHER, named_id("trajectory", "open"), absent):
        refused = await ratchet("trajectories", "show", other, code=1)
        assert refused.replace(other, absent) == await ratchet("trajectories", "show", absent, code=1)
    assert "is stored" in await ratchet("trajectories", "show", OTHER[:8], code=1)
    whole = await ratchet.ended("trajectories", "show", OWN, "--json", RATCHET_API_KEY="every")
    assert CHILD in whole.out


async def test_feedback_looks_up_the_roles_of_the_key(ratchet: Shell) -> None:
    gateway = {"RATCHET_GATEWAY_URL": "http://127.0.0.1:9"}
    dry = ("feedback", "--thumbs", "up", "--dry-run", "--json")
    known = await ratchet.ended(*dry, OWN, "--role", "support", **gateway)
    other = await ratchet.ended(*dry, OTHER, "--role", "support", **gateway)
    blind = await ratchet.ended(*dry, OWN, "--role", "support", **gateway, RATCHET_API_KEY="gives")
    assert [(ended.code, "nothing is stored under" in ended.err) for ended in (known, other)] == [(0, False), (3, True)]
    assert (blind.code, "could not be looked up" in blind.err) == (3, True)


async def test_files_of_a_policy_are_for_a_key_of_its_role(shared_settings: SharedSettings, ratchet: Shell) -> None:
    objects, files = prepared_objects(shared_settings), ["policies", "export", "--dry-run"]
    own, other = (
        publish_policy(objects, PolicyManifest(kind=ADAPTER, base_model="base", files=[], role=role, created_at=AT)).uri
        for role in ("support", "billing")
    )
    assert own in await ratchet(*files, own)
    absent = own.replace(own[-20:-5], "0" * 15)
    refused = [await ratchet(*files, uri, code=1) for uri in (other, absent)]
    assert refused[0].replace(other, absent) == refused[1]


async def test_status_shows_the_roles_of_the_key_and_no_sums(ratchet: Shell) -> None:
    report = await ratchet.json("status")
    assert (report["rows"], report["ledger"], report["streams"]) == (COUNTED, [], {})
    assert ([*report["roles"]], "billing" in str(report)) == (["support"], False)
    assert "streams and the ledger are left out" in await ratchet("status")
    whole, none = [await ratchet.ended("status", "--json", RATCHET_API_KEY=key) for key in ("every", "wrong")]
    assert ("billing" in whole.out, "RL_TURNS" in whole.out, '"left_out": null' in whole.out) == (True, True, True)
    assert ("support" in none.out, "RATCHET_API_KEY" in none.out, none.code) == (False, True, 0)
