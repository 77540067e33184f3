"""The whole of docker-compose.yml in containers: with which rights, in which order, and one loop through it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.local.local_stack.ports import LOOPBACK
from tests.compose.engine import LASTING, ONE_SHOT, RUN, Engine
from tests.compose.loop import TRAJECTORIES, chat

pytestmark = pytest.mark.timeout(3600)

Containers = dict[str, dict[str, Any]]
"""What podman says of each service's container."""


@pytest.fixture(scope="module")
def containers(engine: Engine) -> Containers:
    """As they are once all are healthy."""
    return engine.containers()


def seen_by_kernel(container: dict[str, Any]) -> Path:
    """What the kernel knows of the first process of a container."""
    return Path(f"/proc/{container['State']['Pid']}")


@pytest.mark.parametrize("name", ONE_SHOT)
def test_what_runs_once_ended_well(containers: Containers, name: str) -> None:
    state = containers[name]["State"]

    assert (state["Status"], state["ExitCode"]) == ("exited", 0)


def test_each_container_started_after_what_it_waits_for(engine: Engine, containers: Containers) -> None:
    lines = (engine.folder / "healthy.txt").read_text().splitlines()
    healthy = {name: float(at) for at, name in (line.split() for line in reversed(lines))}

    def at(name: str, moment: str) -> float:
        return datetime.fromisoformat(containers[name]["State"][moment]).timestamp()

    for name, service in RUN.items():
        for needed, how in service.get("depends_on", {}).items():
            if needed not in RUN:
                assert how["required"] is False
            elif how["condition"] == "service_healthy":
                assert healthy[containers[needed]["Name"]] <= at(name, "StartedAt")
            else:
                assert at(needed, "FinishedAt") <= at(name, "StartedAt")


@pytest.mark.parametrize("name", LASTING)
def test_process_has_the_user_of_the_file_and_no_capability(containers: Containers, name: str) -> None:
    lines = (seen_by_kernel(containers[name]) / "status").read_text().splitlines()
    status = {field: value.strip() for field, _, value in (line.partition(":") for line in lines)}

    user, _, group = RUN[name]["user"].partition(":")
    assert (status["Uid"].split(), status["Gid"].split()) == ([user] * 4, [group] * 4)
    assert (int(status["CapEff"], 16), int(status["CapPrm"], 16), status["NoNewPrivs"]) == (0, 0, "1")


@pytest.mark.parametrize("name", [name for name in LASTING if RUN[name].get("read_only")])
def test_root_cannot_be_written(containers: Containers, name: str) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        (seen_by_kernel(containers[name]) / "root/probe").touch()


@pytest.mark.parametrize("name", LASTING)
def test_mounts_lie_where_the_file_has_them(containers: Containers, name: str) -> None:
    mounts = {one["Destination"]: one["RW"] for one in containers[name]["Mounts"]}

    for mount in RUN[name].get("volumes", []):
        _, place, *read_only = mount.split(":")
        if not place.startswith("/var/lib/docker"):
            assert mounts[place] is not bool(read_only)


@pytest.mark.parametrize("name", LASTING)
def test_environment_is_that_of_the_file_with_every_variable_filled(containers: Containers, name: str) -> None:
    known = dict(word.partition("=")[::2] for word in containers[name]["Config"]["Env"])

    for variable, value in RUN[name].get("environment", {}).items():
        assert "${" not in known[variable]
        assert "${" in value or known[variable] == value
        assert known[variable] != ""


def test_containers_of_the_inner_network_alone_have_no_way_out(containers: Containers) -> None:
    for name in (name for name in LASTING if RUN[name]["networks"] == ["back"]):
        routes = (seen_by_kernel(containers[name]) / "net/route").read_text().splitlines()[1:]

        assert not [route for route in routes if route.split()[1] == "00000000"]


def test_ports_are_published_on_the_loopback_address_alone(engine: Engine, containers: Containers) -> None:
    for name in engine.ports:
        bindings = containers[name]["HostConfig"]["PortBindings"].values()

        assert {binding["HostIp"] for published in bindings for binding in published or ()} == {LOOPBACK}


def test_nothing_is_lost_between_stream_and_tables(looped: dict[str, Any]) -> None:
    assert looped["ledger"]
    assert not [ledger for ledger in looped["ledger"] if ledger["lost"] or ledger["missing"] or ledger["absent"]]
    assert (looped["rows"]["trajectories"], looped["rows"]["rewards"]) == (TRAJECTORIES, TRAJECTORIES)


def test_policy_that_was_trained_answers_through_the_gateway(engine: Engine, looped: dict[str, Any]) -> None:
    assert [job["state"] for job in looped["jobs"]] == ["completed"]
    assert chat(engine)["choices"][0]["message"]["role"] == "assistant"
