"""docker-compose.yml: valid, complete, closed, and about things that exist."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import jsonschema
import pytest
import yaml
from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from ratchet.console.http_services import SERVICES as ALWAYS
from ratchet.core.rules.algorithms import PROMPTS
from ratchet.core.rules.model_hub import HUB_VARIABLE
from ratchet.core.service.runtime import SHUTDOWN_S
from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack import broker_users
from ratchet.local.local_stack.broker_users import ADMIN, CONTAINER_SEED, OPERATOR
from ratchet.local.local_stack.catalog import (
    ANALYST,
    MLFLOW,
    MLFLOW_PORT,
    NOTIFIER,
    PROMPT_WORKER,
    SERVICES,
    SPAN_EXPORTER,
    TRACKER,
    WORKFLOWS,
)
from ratchet.local.local_stack.plan import HEALTH_URLS
from ratchet.local.local_stack.providers import PROVIDERS
from ratchet.local.local_stack.servers import clickhouse_server, mlflow_server, nats_server
from tests.support.compose import REPOSITORY, VARIABLE, compose, services
from tools.environment.make_env import assignments

OURS = {spec.name: spec for spec in (*SERVICES, NOTIFIER, SPAN_EXPORTER, WORKFLOWS, ANALYST)}
ASKED_FOR = [WORKFLOWS.name, ANALYST.name]
"""Services of profiles of their own."""
ONE_SHOT = {"volumes", "broker_users", "init"}
BY_HAND = {"operator"}
"""Run by a person, with the profile `tools`."""
AS_ROOT = {"volumes", "alloy"}
"""What hands volumes over, with that capability alone, and what reads docker's logs, which are root's, with none."""
EXAMPLE = assignments((REPOSITORY / ".env.example").read_text())
TEXT = (REPOSITORY / "docker-compose.yml").read_text()


def test_file_follows_the_compose_specification() -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())

    errors = jsonschema.validators.validator_for(schema)(schema).iter_errors(compose())
    assert [f"{error.json_path}: {error.message}" for error in errors] == []


def test_every_service_of_the_embedded_stack_is_there() -> None:
    assert set(OURS) <= set(services())


def test_every_variable_is_in_the_example_and_missing_secret_names_remedy() -> None:
    known = {name: value for name, value in EXAMPLE.items() if name != "COMPOSE_PROFILES"}  # compose itself reads it
    used = {match[1]: match[0] for match in VARIABLE.finditer(TEXT)}

    assert set(used) == set(known)
    for name, value in known.items():
        if value == "":
            assert used[name] == f"${{{name}:?run make env}}"
    assert all(match[0].endswith(":?run make env}") for match in VARIABLE.finditer(TEXT) if known[match[1]] == "")


SETTINGS = OURS | {"trainer_gpu": OURS["trainer_worker"], TRACKER.name: TRACKER}
"""Services that read settings of ours: those of the embedded stack, and those of profiles."""


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_command_runs_a_module_that_exists(name: str) -> None:
    assert services()[name]["command"] == ["python", "-m", SETTINGS[name].module]
    assert find_spec(f"{SETTINGS[name].module}.__main__")


def test_init_runs_a_module_with_a_main() -> None:
    command = services()["init"]["command"]

    assert command[:2] == ["python", "-m"]
    assert callable(importlib.import_module(command[2]).main)


def _variables(settings: type[BaseSettings]) -> set[str]:
    """Names of the environment variables that a settings class reads."""
    prefix = settings.model_config.get("env_prefix", "")
    names: set[str] = set()
    for name, field in settings.model_fields.items():
        alias: Any = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [f"{prefix}{name}".upper()]
        names |= {str(choice) for choice in choices}
    return names


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_environment_names_are_settings_of_the_service(name: str) -> None:
    settings = importlib.import_module(f"{SETTINGS[name].module}.settings").Settings
    known = _variables(settings) | _variables(SharedSettings) | {HUB_VARIABLE}
    if name == "gateway":
        known |= {provider.key_variable for provider in PROVIDERS.values()}

    assert set(services()[name].get("environment", {})) <= known


def test_base_models_are_fetched_from_the_hub_only_when_switched_on() -> None:
    for name in ("trainer_worker", "trainer_gpu", "engine_local", "engine_vllm"):
        assert services()[name]["environment"][HUB_VARIABLE] == "${HUB:-0}"
        assert "front" in services()[name]["networks"]
    assert not compose()["networks"]["front"].get("internal")
    assert EXAMPLE["HUB"] == "0"


def test_who_reads_or_writes_objects_has_their_key_and_a_way_elsewhere() -> None:
    registry = json.loads((REPOSITORY / "contracts/topics.json").read_text())["objects"]
    named = {program for kept in registry.values() for program in (*kept["writers"], *kept.get("readers", ()))}
    programs = {name: spec.configured_as for name, spec in SETTINGS.items()}
    programs |= {"trainer_gpu": "trainer_worker", "engine_vllm": "vllm_plugin", **dict.fromkeys(BY_HAND, "cli")}
    users = {name for name, of in services().items() if "RATCHET_S3_ENDPOINT" in of.get("environment", {})}

    assert {"init"} | {name for name, program in programs.items() if program in named} == users
    for name in users:
        assert compose()["x-objects"].items() <= services()[name]["environment"].items()
        assert "front" in services()[name]["networks"]
    assert compose()["x-objects"]["RATCHET_S3_ENDPOINT"] == "${S3_ENDPOINT:-" + EXAMPLE["S3_ENDPOINT"] + "}"


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_no_container_is_killed_before_its_service_had_time_to_stop(name: str) -> None:
    settings = importlib.import_module(f"{SETTINGS[name].module}.settings").Settings
    drain = settings.model_fields.get("drain_s")
    own_s = SHUTDOWN_S + (drain.default if drain else 0)
    grace = services()[name]["stop_grace_period"]

    assert not any(variable.endswith("DRAIN_S") for variable in services()[name]["environment"])
    assert float(grace.removesuffix("s")) > own_s


def test_gateway_and_deployer_ask_the_same_engines_with_the_same_key() -> None:
    gateway, deployer = (services()[name]["environment"] for name in ("gateway", "canary_deployer"))

    for name in ("URL", "KIND", "API_KEY", "LOGPROBS_MODE"):
        assert gateway[f"RATCHET_ENGINE_{name}"] == deployer[f"RATCHET_ENGINE_{name}"]
    assert gateway["RATCHET_ENGINES"] == deployer["RATCHET_ENGINES"]


def test_a_user_has_the_same_name_in_calls_and_in_workflows() -> None:
    gateway, workflows = (services()[name]["environment"] for name in ("gateway", WORKFLOWS.name))

    assert workflows["RATCHET_GATEWAY_USER_KEY"] == gateway["RATCHET_GATEWAY_USER_KEY"]


def test_every_api_is_closed_from_the_start_and_services_know_one_another() -> None:
    apis = [services()[name]["environment"] for name in ("gateway", "rl_coordinator", "canary_deployer", "console")]

    for environment in apis:
        (admin,) = SharedSettings.model_validate({"keys": environment["RATCHET_KEYS"]}).keys
        assert (admin.scopes, admin.key.get_secret_value()) == (("admin",), "${ADMIN_API_KEY:?run make env}")
        assert environment["RATCHET_SERVICE_KEY"] == "${SERVICE_KEY:?run make env}"
    assert len({one["RATCHET_KEYS"] for one in apis}) == 1


def test_gpu_worker_comes_with_its_profile_reserves_a_gpu_and_has_a_pool() -> None:
    worker = services()["trainer_gpu"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]

    assert worker["profiles"] == ["gpu"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert worker["environment"]["RATCHET_TRAINER_POOL"] == "gpu"
    assert worker["build"] == services()["trainer_worker"]["build"]
    assert worker["build"]["args"]["CUDA"] == "${CUDA:-no}"
    assert "trainer_gpu" not in {needed for one in services().values() for needed in one.get("depends_on", {})}


def test_searches_have_a_worker_without_torch_that_asks_the_gateway() -> None:
    worker = services()[PROMPT_WORKER]
    assert (worker["image"], worker["environment"]["RATCHET_TRAINER_POOL"]) == (services()["gateway"]["image"], PROMPTS)
    assert worker["environment"]["RATCHET_GATEWAY_URL"] == "http://gateway:8080"
    assert worker["environment"]["RATCHET_SERVICE_KEY"] == services()["gateway"]["environment"]["RATCHET_SERVICE_KEY"]


def test_vllm_comes_with_the_profile_of_gpus_in_the_place_of_local_engine() -> None:
    vllm = services()["engine_vllm"]

    assert (vllm["profiles"], services()["engine_local"]["profiles"]) == (["gpu"], ["local"])
    assert EXAMPLE["COMPOSE_PROFILES"] == "local"
    assert vllm["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert vllm["command"][:4] == ["python", "-m", "ratchet.extras.vllm_plugin", "serve"]
    mode = services()["gateway"]["environment"]["RATCHET_ENGINE_LOGPROBS_MODE"]
    assert {"--enable-lora", f"--logprobs-mode={mode}"} <= set(vllm["command"])
    assert mode == "${ENGINE_LOGPROBS_MODE:-processed_logprobs}"
    assert EXAMPLE["ENGINE_LOGPROBS_MODE"] == "processed_logprobs"
    assert vllm["environment"]["VLLM_API_KEY"] == services()["gateway"]["environment"]["RATCHET_ENGINE_API_KEY"]
    for caller in ("gateway", "canary_deployer"):
        waits = services()[caller]["depends_on"]
        assert {name: waits[name]["required"] for name in ("engine_local", "engine_vllm")} == {
            "engine_local": False,
            "engine_vllm": False,
        }


def test_mlflow_and_tracker_come_with_their_profile_and_hold_up_nothing() -> None:
    profiles = {name: one["profiles"] for name, one in services().items() if "profiles" in one}

    engines = {"engine_local": ["local"], "engine_vllm": ["gpu"]}
    by_hand = {name: ["tools"] for name in BY_HAND}
    further = {"trainer_gpu": ["gpu"], WORKFLOWS.name: ["workflows"], ANALYST.name: ["analyst"]}
    further |= {"alertmanager": ["alerting"], "loki": ["logs"], "alloy": ["logs"]}
    assert profiles == {TRACKER.name: ["mlflow"], MLFLOW: ["mlflow"], **further, **engines, **by_hand}
    needed = {
        needed
        for name, one in services().items()
        if name not in profiles
        for needed, how in one.get("depends_on", {}).items()
        if how.get("required", True)
    }
    assert not needed & set(profiles)
    url = services()[TRACKER.name]["environment"]["RATCHET_TRACKER_MLFLOW_URL"]
    assert url == f"http://{MLFLOW}:{MLFLOW_PORT}"
    (hosts,) = (word for word in services()[MLFLOW]["command"] if word.startswith("--allowed-hosts="))
    assert url.removeprefix("http://") in hosts.partition("=")[2].split(",")


def test_the_coordinator_reads_the_slots_of_the_example() -> None:
    settings = importlib.import_module("ratchet.rl_coordinator.settings").Settings

    slots = settings.model_validate({"slots": json.loads(EXAMPLE["TRAINING_SLOTS"].strip("'"))}).slots
    assert dict(slots) == {"default": 1, "prompts": 1}


def test_the_example_can_be_sourced_by_a_shell_as_compose_reads_it() -> None:
    words = subprocess.run(
        ["sh", "-ec", f". {REPOSITORY}/.env.example; printf '%s' \"$TRAINING_SLOTS\""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(words.stdout) == {"default": 1, "prompts": 1}


def test_clickhouse_s_logs_about_itself_have_an_end() -> None:
    root = ElementTree.parse(REPOSITORY / "deploy/docker/clickhouse.xml").getroot()

    logs = [one for one in root if one.tag.endswith("_log")]
    assert logs
    assert all(one.get("remove") == "1" or "DELETE" in str(one.findtext("ttl")) for one in logs)
    assert {"query_log", "part_log", "metric_log", "asynchronous_metric_log", "trace_log", "text_log"} <= {
        one.tag for one in logs
    }


@pytest.mark.parametrize("name", [*HEALTH_URLS])
def test_every_service_of_all_profiles_is_asked_at_its_health_port(name: str) -> None:
    urls = json.loads(services()[name]["environment"][HEALTH_URLS[name]])

    assert urls == {other: f"http://{other}:9100" for other in set(OURS) - {"engine_local", *ASKED_FOR, name}}
    assert set(ALWAYS) <= set(urls)


def test_upstreams_and_receivers_come_from_the_environment_file() -> None:
    assert (EXAMPLE["UPSTREAMS"], EXAMPLE["RECEIVERS"]) == ("[]", "[]")
    gateway, notifier = services()["gateway"]["environment"], services()["notifier"]["environment"]
    assert gateway["RATCHET_GATEWAY_UPSTREAMS"] == "${UPSTREAMS:-[]}"
    assert {name: gateway[name] for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")} == {
        name: f"${{{name}:-none}}" for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    }
    assert notifier["RATCHET_NOTIFIER_RECEIVERS"] == "${RECEIVERS:-[]}"
    assert "front" in services()["notifier"]["networks"]


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_addresses_name_services_of_the_file_and_their_ports(name: str) -> None:
    ports = {"nats": 4222, "clickhouse": 8123, "minio": 9000, MLFLOW: MLFLOW_PORT} | {
        spec.name: spec.port for spec in OURS.values() if spec.port
    }
    given = services()[name].get("environment", {})
    environment = {key: value for key, value in given.items() if key not in HEALTH_URLS.values()}
    for value in environment.values():
        for host, port in re.findall(r"(?:http|nats)://(?:[^@/]*@)?(\w+):(\d+)", value):
            assert ports[host] == int(port)


@pytest.mark.parametrize("name", sorted(set(OURS) - {"engine_local"}))
def test_default_addresses_of_peers_are_their_default_ports(name: str) -> None:
    peers = {"coordinator_url": "rl_coordinator", "deployer_url": "canary_deployer", "gateway_url": "gateway"}
    settings = importlib.import_module(f"{SETTINGS[name].module}.settings").Settings
    defaults = {field: settings.model_fields[field].default for field in peers.keys() & settings.model_fields.keys()}
    for field, default in defaults.items():
        assert default in {None, f"http://127.0.0.1:{OURS[peers[field]].port}"}


def test_the_analyst_has_room_for_the_process_that_mines() -> None:
    assert services()["analyst"]["deploy"]["resources"]["limits"]["memory"] == "2g"


@pytest.mark.parametrize("name", sorted(services()))
def test_service_is_confined(name: str) -> None:
    service = services()[name]

    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["deploy"]["resources"]["limits"].keys() >= {"cpus", "memory"} or service["image"].startswith(
        "ratchet"
    )
    assert re.search(r":[\w.-]*\d[\w.-]*(@sha256:[0-9a-f]{64})?$", service["image"]), "a pinned tag"
    if name not in AS_ROOT:
        assert not str(service["user"]).startswith("0:")
    if name != "clickhouse":
        assert service["read_only"] is True


@pytest.mark.parametrize("name", sorted(set(services()) - ONE_SHOT - BY_HAND))
def test_lasting_service_is_watched_and_restarted(name: str) -> None:
    service = services()[name]

    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", sorted({*OURS, "nats", "clickhouse", MLFLOW} - {"engine_vllm"}))
def test_health_check_asks_what_the_embedded_stack_asks(name: str, tmp_path: Path) -> None:
    """Each of these paths is answered whenever a test starts the server or a service: readiness waits for it."""
    ready = {
        "nats": (8222, nats_server(tmp_path, 4222, 8222).ready_url),
        "clickhouse": (8123, clickhouse_server(tmp_path, 8123, "password").ready_url),
        MLFLOW: (MLFLOW_PORT, mlflow_server(Path(sys.executable), tmp_path, MLFLOW_PORT).ready_url),
    }
    port, url = ready.get(name, (9100, "http://127.0.0.1:9100/readyz"))
    asked = urlsplit(re.findall(r"http://127[^'\" ]+", " ".join(services()[name]["healthcheck"]["test"]))[0])

    assert (asked.port, asked.path) == (port, f"/{urlsplit(url).path.rpartition('/')[2]}")


def test_ports_are_published_on_the_loopback_address_only() -> None:
    published = [port for service in services().values() for port in service.get("ports", [])]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def _seeds_of(container: str) -> dict[str, str]:
    """By the volume that a one-shot container mounts for another one: the user whose seed goes there."""
    mounts = (mount.split(":") for mount in services()[container]["volumes"])
    return {volume: place.split("/")[2] for volume, place in mounts if place.startswith("/containers/")}


def test_every_container_at_the_broker_has_the_key_of_its_own_user_alone() -> None:
    own = {name: SETTINGS[name].configured_as for name in SETTINGS} | {"trainer_gpu": "trainer_worker"}
    own |= {"init": ADMIN, "streams": ADMIN, "operator": OPERATOR}
    at_broker = {name for name, one in services().items() if "RATCHET_NATS_URL" in one.get("environment", {})}

    assert _seeds_of("broker_users") == {name: own[name] for name in at_broker}
    assert _seeds_of("volumes") == _seeds_of("broker_users")
    for name in at_broker:
        assert services()[name]["environment"]["RATCHET_NATS_SEED_FILE"] == f"/data/{CONTAINER_SEED}"
        assert services()[name]["volumes"] == [f"{name}:/data"]


def test_seeds_are_together_where_they_are_made_and_nowhere_else() -> None:
    holders = {name for name, one in services().items() if any("broker_seeds:" in m for m in one.get("volumes", []))}

    assert holders == {"volumes", "broker_users"}
    assert all(services()[name]["network_mode"] == "none" for name in holders)
    assert {"nats:/users", "broker_seeds:/users/seeds"} <= {*services()["broker_users"]["volumes"]}
    assert services()["broker_users"]["command"][2:] == [broker_users.__name__, "/users", "/containers"]
    assert services()["nats"]["depends_on"]["broker_users"]["restart"] is True


@pytest.mark.parametrize("name", sorted(services()))
def test_dependencies_wait_for_health_or_for_the_end(name: str) -> None:
    for needed, wait in services()[name].get("depends_on", {}).items():
        expected = "service_completed_successfully" if needed in ONE_SHOT else "service_healthy"
        assert wait["condition"] == expected


@pytest.mark.parametrize("name", sorted(services()))
def test_mounts_are_named_volumes_or_files_of_the_repository(name: str) -> None:
    for mount in services()[name].get("volumes", []):
        source = mount.split(":")[0]
        if source.startswith("./"):
            assert (REPOSITORY / source).exists()
            assert mount.endswith(":ro")
        elif source.startswith("/"):
            assert (name, mount) == ("alloy", "/var/lib/docker/containers:/var/lib/docker/containers:ro")
        else:
            assert source in compose()["volumes"]


def test_prometheus_scrapes_every_service_at_its_health_port() -> None:
    config = yaml.safe_load((REPOSITORY / "deploy/prometheus/prometheus.yml").read_text())

    targets = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert set(targets) == {f"{name}:9100" for name in set(OURS) - {"engine_local", "gateway", *ASKED_FOR}}
    by_name = config["scrape_configs"][0]["dns_sd_configs"][0]["names"]
    assert by_name == ["gateway", "engine_local", "trainer_gpu", TRACKER.name, *ASKED_FOR]
    (vllm,) = config["scrape_configs"][1]["dns_sd_configs"]
    (port,) = (word for word in services()["engine_vllm"]["command"] if word.startswith("--port="))
    assert (vllm["names"], f"--port={vllm['port']}") == (["engine_vllm"], port)
    assert set(services()["engine_vllm"]["networks"]) & set(services()["prometheus"]["networks"])


def test_every_alert_links_a_section_of_the_operations_guide() -> None:
    rules = yaml.safe_load((REPOSITORY / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    headings = re.findall(r"^#+ (.+)$", (REPOSITORY / "docs/operations.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    for rule in rules:
        assert rule["annotations"]["runbook"].removeprefix("docs/operations.md#") in anchors
