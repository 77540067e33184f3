"""The whole of docker-compose.yml in containers: with which rights, in which order, and one loop through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from ratchet.local.local_stack.ports import LOOPBACK
from tests.compose.engine import OURS, PROFILES, STAND_INS, Engine
from tests.support.compose import REPOSITORY, services

pytestmark = pytest.mark.timeout(3600)

RUN = {
    name: service
    for name, service in services().items()
    if set(service.get("profiles", PROFILES.split(","))) & set(PROFILES.split(","))
}
"""What `up` starts."""
LASTING = sorted(name for name, service in RUN.items() if service["restart"] == "unless-stopped")
ONE_SHOT = sorted(set(RUN) - set(LASTING))
VENDORS = {name for users in STAND_INS.values() for name in users} | {"grafana"}
SERVED_S = 600
"""Deadline from a policy's registration to its first answer: gates, and the engine that loads it."""
TRAJECTORIES = 120
"""30 tasks, each four times."""
LESSONS = ("--set", "full_finetune=true", "--set", "learning_rate=2e-3", "--min-reward", "0.5")


Containers = dict[str, dict[str, Any]]
"""What podman says of each service's container."""


@pytest.fixture(scope="module")
def containers(engine: Engine) -> Containers:
    """As they are once all are healthy."""
    return engine.containers()


def seen_by_kernel(container: dict[str, Any]) -> Path:
    """What the kernel knows of the first process of a container."""
    return Path(f"/proc/{container['State']['Pid']}")


def depth(name: str) -> int:
    """How many containers have to be there before this one, one after the other."""
    return max((1 + depth(needed) for needed in RUN[name].get("depends_on", {}) if needed in RUN), default=0)


def operator(engine: Engine, *words: str) -> str:
    """`docker compose run --rm operator ...`."""
    return engine.compose("--profile=tools", "run", "--rm", "--no-deps", "-T", "operator", *words)


def chat(engine: Engine) -> dict[str, Any]:
    """An answer of the gateway at its port on this machine, or its refusal."""
    asked = Request(
        f"http://{LOOPBACK}:{engine.ports['gateway']}/v1/chat/completions",
        data=json.dumps({"model": "support", "messages": [{"role": "user", "content": "hello"}]}).encode(),
        headers={"Authorization": f"Bearer {engine.secret('GATEWAY_API_KEY')}", "Content-Type": "application/json"},
    )
    try:
        with urlopen(asked, timeout=60) as answer:
            return json.load(answer)
    except HTTPError as refused:
        return json.load(refused)


@pytest.fixture(scope="module")
def agent(engine: Engine) -> dict[str, str]:
    """The environment of an agent on this machine, with a key of its own, as the guide has it."""
    users = ("run", "--rm", "--no-deps", "-T", "broker_users")
    engine.compose(*users, "ratchet", "broker", "add", "support-bot", "--role", "support", "--users", "/users")
    for _ in range(2):  # nats-server gives a user that is new its way to the streams at the second reading
        engine.compose("kill", "-s", "HUP", "nats")
        time.sleep(5)
    seed = engine.folder / "support-bot.seed"
    seed.write_text(engine.compose(*users, "cat", "/users/seeds/support-bot.seed"))
    seed.chmod(0o600)
    return {
        "RATCHET_NATS_URL": f"nats://{LOOPBACK}:{engine.ports['nats']}",
        "RATCHET_NATS_SEED_FILE": str(seed),
        "RATCHET_DIR": str(engine.folder),
        "RATCHET_DATA_DIR": str(engine.folder / "agent"),
    }


@pytest.fixture(scope="module")
def looped(engine: Engine, agent: dict[str, str]) -> dict[str, Any]:
    """What `ratchet status --json` shows once 120 trajectories were learned from, and the policy answers."""
    subprocess.run(
        [sys.executable, "examples/python/tickets.py"], cwd=REPOSITORY, env=os.environ | agent, check=True, timeout=300
    )
    base = ("--base-model", "/models/base", "--set", "max_steps=20")
    operator(engine, "train", "support", "--algorithm", "sft", *LESSONS, *base, "--wait")
    deadline = time.monotonic() + SERVED_S
    while not chat(engine).get("model", "").startswith("support@1-"):
        assert time.monotonic() < deadline, "the policy that was trained does not answer"
        time.sleep(2)
    return json.loads(operator(engine, "status", "--json"))


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
    assert looped["errors"] == {}
    assert looped["ledger"]
    assert not [ledger for ledger in looped["ledger"] if ledger["lost"] or ledger["missing"] or ledger["absent"]]
    assert (looped["rows"]["trajectories"], looped["rows"]["rewards"]) == (TRAJECTORIES, TRAJECTORIES)


def test_policy_that_was_trained_answers_through_the_gateway(engine: Engine, looped: dict[str, Any]) -> None:
    assert [job["state"] for job in looped["jobs"]] == ["completed"]
    assert chat(engine)["choices"][0]["message"]["role"] == "assistant"


def test_stop_ends_each_program_within_its_grace(engine: Engine, looped: dict[str, Any]) -> None:
    assert looped["roles"]
    for name in sorted(LASTING, key=depth, reverse=True):  # podman-compose stops a broker before its clients
        engine.compose("stop", name)
    codes = {name: one["State"]["ExitCode"] for name, one in engine.containers().items() if name in LASTING}

    ours = set(LASTING) - VENDORS - {"streams"}  # which has nothing to end: the signal ends it
    assert {name: codes[name] for name in ours} == dict.fromkeys(ours, 0)
    assert 137 not in codes.values()


def test_new_image_finds_the_data_of_the_old_one(engine: Engine, looped: dict[str, Any]) -> None:
    engine.compose("down")
    old = engine.podman("images", "-q", OURS).strip()
    engine.build(["broker_users"], "--build-arg=VERSION=0.1.1")
    assert engine.podman("images", "-q", OURS).strip() != old
    engine.up()
    now = json.loads(operator(engine, "status", "--json"))

    assert now["rows"]["trajectories"] >= looped["rows"]["trajectories"]
    assert now["roles"]["support"]["stable"] == looped["roles"]["support"]["stable"]
    assert chat(engine)["model"].startswith("support@1-")
