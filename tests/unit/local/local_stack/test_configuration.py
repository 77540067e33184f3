"""All services' settings, checked together: what is wrong is reported at once, each thing once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import ConfigError
from ratchet.core.service.setting_names import OTHERS, unknown
from ratchet.core.service.settings_file import SettingsFile
from ratchet.gateway.settings import Settings as GatewaySettings
from ratchet.local.local_stack.catalog import ALL_SERVICES, SERVICES
from ratchet.local.local_stack.configuration import StackTable, effective, faults_of, kinds, stack_table, warnings_of
from ratchet.local.local_stack.preflight import planned
from ratchet.local.local_stack.settings import StackSettings


def file(text: str) -> SettingsFile:
    return SettingsFile(Path("ratchet.toml"), tomllib.loads(text))


def faults(text: str = "", environment: dict[str, str] | None = None) -> list[str]:
    return list(faults_of(file(text), environment or {}, {spec.configured_as: {} for spec in SERVICES}))


def test_every_service_has_settings_that_come_from_the_file_too() -> None:
    own = [spec.name for spec in ALL_SERVICES if spec.configured_as == spec.name]
    assert [*kinds()] == [*own, "client", "vllm_plugin"]


def test_the_address_of_every_service_is_a_known_variable() -> None:
    urls = [spec.url_variable for spec in SERVICES if spec.port is not None]
    assert unknown(urls, set(OTHERS)) == []


def test_all_that_is_wrong_is_reported_at_once_and_each_thing_once() -> None:
    text = "log_levl = 'x'\n[coordinator]\n[gatway]\n[gateway]\nrecorders = 0\n[stack]\nport = {}\n"
    environment = {"RATCHET_LOG_LEVEL": "loud", "RATCHET_REWARD_WINDOW": "x", "RATCHET_GATEWAY_UPSTREEMS": "[]"}
    assert [fault.split(":")[0] + ":" + fault.partition(": ")[2][:40] for fault in faults(text, environment)] == [
        "there is no setting log_levl in ratchet.toml; did you mean log_level?:",
        "there is no table coordinator in ratchet.toml; did you mean rl_coordinator?:",
        "there is no table gatway in ratchet.toml; did you mean gateway?:",
        "there is no setting stack.port in ratchet.toml; did you mean ports?:",
        "wrong setting RATCHET_LOG_LEVEL:Input should be 'debug', 'info', 'warnin",
        "reward_computer:wrong setting RATCHET_REWARD_WINDOW: Inp",
        "gateway:wrong setting gateway.recorders in ratch",
        "gateway:there is no variable RATCHET_GATEWAY_UPS",
    ]


@pytest.mark.parametrize(
    ("name", "fault"),
    [("RATCHET_LOGLEVEL", "; did you mean RATCHET_LOG_LEVEL?"), ("RATCHET_PORT_NATS", None)],
)
def test_a_variable_that_is_almost_a_setting_is_refused(name: str, fault: str | None) -> None:
    problems = [] if fault is None else [f"there is no variable {name}{fault}"]
    assert faults(environment={name: "1", "HOME": "/"}) == problems
    assert list(warnings_of(file(""), {name: "1"})) == []


def test_a_variable_that_resembles_none_of_ours_is_the_users_own() -> None:
    environment = {"RATCHET_MY_REWARD_TOKEN": "t", "RATCHET_XYZ": "1", "HOME": "/"}
    assert faults(environment=environment) == []
    (warning,) = warnings_of(file(""), environment)
    assert "no setting is called RATCHET_MY_REWARD_TOKEN, RATCHET_XYZ: right" in warning


def test_variable_of_a_service_that_does_not_start_is_known_too() -> None:
    key = "RATCHET_GATEWAY_UPSTREAM"  # almost one of the gateway's
    upstream = f'[{{"name": "u", "base_url": "http://u/v1", "models": {{}}, "api_key_env": "{key}"}}]'
    environment = {"RATCHET_GATEWAY_UPSTREAMS": upstream, key: "k"}
    assert list(faults_of(file(""), environment, {"trajectory_collector": {}})) == []
    assert list(warnings_of(file(""), environment)) == []


def test_what_kubernetes_sets_is_no_setting_and_no_origin() -> None:
    environment = {"RATCHET_GATEWAY_PORT": "tcp://10.0.0.1:8080", "RATCHET_ANOTHER_PORT": "udp://10.0.0.1:53"}
    assert faults(environment=environment) == []
    (port,) = [one for one in effective(GatewaySettings, file(""), environment, {}) if one.setting.name == "port"]
    assert (port.value, port.origin) == (8080, None)


@pytest.mark.parametrize(
    ("environment", "fault"),
    [
        ({"RATCHET_REWARD_WEIGHTS": '{"a": {"speed": 1}}'}, "reward_computer: RATCHET_REWARD_WEIGHTS: role a has unkn"),
        ({"RATCHET_COORDINATOR_RECIPES": '{"a": {}}'}, "rl_coordinator: training recipe of role a"),
        (
            {
                "RATCHET_GATEWAY_UPSTREAMS": '[{"name": "u", "base_url": "a", "models": {}, "api_key_env": "U"}]',
            },
            "gateway: upstream u: the environment variable U is not set",
        ),
    ],
    ids=["weights", "recipes", "key"],
)
def test_what_a_service_would_refuse_at_its_start_is_known_before(environment: dict[str, str], fault: str) -> None:
    (problems,) = faults(environment=environment)
    assert problems.startswith(fault)


def test_table_of_the_stack_stands_for_options_and_services_name_ports() -> None:
    text = "[stack]\nports = {nats = 4223}\nfree_ports = true\nonly = ['gateway']\n[rl_coordinator]\nport = 9000\n"
    table = stack_table(file(text + "health_port = 9001\n"))
    assert table == StackTable({"coordinator": 9000, "coordinator_health": 9001, "nats": 4223}, True, ("gateway",))


@pytest.mark.parametrize("text", ["free_ports = 1", "only = 'gateway'", "only = [1]", "ports = 3", "ports = {a = 'x'}"])
def test_a_wrong_value_for_the_stack_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\[stack\]|not a port number"):
        stack_table(file(f"[stack]\n{text}\n"))


def test_an_upstream_of_the_file_holds_no_password() -> None:
    with pytest.raises(ConfigError, match=r"the password in upstream is a secret.*RATCHET_UPSTREAM_KEY") as refused:
        stack_table(file("[stack]\nupstream = 'http://u:hush@host/v1'\n"))
    assert "hush" not in str(refused.value)


def origins(**given: Any) -> dict[str, tuple[object, str | None]]:
    every = effective(GatewaySettings, file("[gateway]\nrecorders = 3\ncache_bytes = 5\n"), **given)
    return {one.setting.name: (one.value, one.origin) for one in every}


def test_each_value_has_its_origin() -> None:
    problems = origins(
        environment={"RATCHET_GATEWAY_CACHE_BYTES": "7", "RATCHET_NATS_URL": "nats://a"},
        stack={"RATCHET_NATS_URL": "nats://b"},
    )
    assert problems["recorders"] == (3, "gateway.recorders in ratchet.toml")
    assert problems["cache_bytes"] == (7, "RATCHET_GATEWAY_CACHE_BYTES")
    assert problems["nats_url"] == ("nats://b", "ratchet up (RATCHET_NATS_URL)")
    assert problems["grace_s"] == (1.0, None)


def test_start_gives_services_what_the_file_sets_below_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_LOG_LEVEL", "error")
    text = "log_level = 'debug'\ns3_bucket = 'mine'\n[trajectory_collector]\nidle_s = 5\nhealth_port = 23456\n"
    only = ("trajectory_collector", "reward_computer")
    plan = planned(StackSettings(tmp_path, {}, free_ports=True, only=only, file=file(text)))
    programs = {program.name: program.env for program in plan.programs}
    collector, reward = programs["trajectory_collector"], programs["reward_computer"]
    assert (collector["RATCHET_COLLECTOR_IDLE_S"], "RATCHET_COLLECTOR_IDLE_S" in reward) == ("5", False)
    assert "RATCHET_LOG_LEVEL" not in collector
    assert (plan.env["RATCHET_S3_BUCKET"], collector["RATCHET_S3_BUCKET"]) == ("mine", "mine")
    assert collector["RATCHET_CONFIG"] == ""


def test_a_start_reports_the_directory_the_ports_and_the_settings_together(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = StackSettings(
        tmp_path / "file" / "state",
        {"nats": 8123, "clickhouse": 8123},
        env={"RATCHET_COLLECTOR_IDLE_S": "x"},
        only=("trajectory_collector",),
        file=file("log_levl = 'x'"),
    )
    with pytest.raises(ConfigError) as refused:
        planned(settings)
    first, *lines = str(refused.value).splitlines()
    assert first == "4 things keep the stack from starting:"
    parts = ("no stack can be kept in", "8123 is given to both", "log_levl", "IDLE_S")
    for line, part in zip(lines, parts, strict=True):
        assert line.startswith("  - ")
        assert part in line
