"""The manifests that the chart makes: what they say agrees with the registry, the catalog and docker-compose.yml."""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.core.rules.model_hub import HUB_VARIABLE
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.runtime import SHUTDOWN_S
from ratchet.core.service.setting_names import settings_in, variables_in
from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.broker_users import STREAMS_ACCOUNT
from ratchet.local.local_stack.catalog import ALL_SERVICES, ENGINE, TRACKER
from ratchet.local.local_stack.providers import PROVIDERS
from tests.support.compose import image, services
from tools.kubernetes.manifests import BASE, CHART, OPTIONAL, REPOSITORY

OBJECTS: list[Any] = list(yaml.safe_load_all(BASE.read_text()))
EVERYTHING: list[Any] = [*OBJECTS, *yaml.safe_load_all(OPTIONAL.read_text())]
PROGRAMS = {
    **{spec.name: spec for spec in ALL_SERVICES},
    "trainer_gpu": next(s for s in ALL_SERVICES if s.short == "trainer"),
}
NAMES = sorted({*PROGRAMS} - {ENGINE, TRACKER.name})
"""vLLM serves instead of the one, and the other one belongs to a server of MLflow."""
REGISTRY: Any = json.loads((REPOSITORY / "contracts" / "topics.json").read_text())


def _object(kind: str, name: str) -> Any:
    (made,) = (each for each in OBJECTS if each["kind"] == kind and each["metadata"]["name"] == name.replace("_", "-"))
    return made


def _container(name: str) -> Any:
    (container,) = _object("StatefulSet", name)["spec"]["template"]["spec"]["containers"]
    return container


def _variables(name: str) -> set[str]:
    own = {each["name"] for each in _container(name)["env"]} - {"POD_NAME"}
    return own | set(_object("ConfigMap", "ratchet")["data"])


def _program(name: str) -> str:
    spec = PROGRAMS[name]
    return (spec.like or spec).name


def _allows(name: str, way: str, port: int) -> set[str]:
    """The services on the other side of a port, as a policy names them."""
    rules = _object("NetworkPolicy", name)["spec"].get(way, [])
    peers = [peer for rule in rules if {"port": port} in rule["ports"] for peer in rule.get("from", rule.get("to", []))]
    terms = [term for peer in peers for term in peer.get("podSelector", {}).get("matchExpressions", [])]
    return {value for term in terms if term["key"].endswith("component") for value in term["values"]}


def test_chart_reads_the_registry_and_the_brokers_configuration_themselves() -> None:
    assert (CHART / "topics.json").resolve() == REPOSITORY / "contracts" / "topics.json"
    assert (CHART / "cluster.conf").resolve() == REPOSITORY / "deploy" / "nats" / "cluster.conf"


def test_every_service_is_there_but_those_that_others_take_the_place_of() -> None:
    made = {each["metadata"]["name"] for each in OBJECTS if each["kind"] == "StatefulSet"}
    assert made == {"nats", *(name.replace("_", "-") for name in NAMES)}


@pytest.mark.parametrize("name", NAMES)
def test_a_service_runs_the_module_and_serves_the_ports_of_the_catalog(name: str) -> None:
    container, spec = _container(name), PROGRAMS[name]
    assert container["command"] == services()[name]["command"]
    assert find_spec(container["command"][2])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"health": 9100, **({"http": spec.port} if spec.port else {})}
    served = {port["name"]: port["port"] for port in _object("Service", name)["spec"]["ports"]}
    assert served == ports


def test_addresses_of_services_are_those_that_the_catalog_names() -> None:
    data = _object("ConfigMap", "ratchet")["data"]
    for spec in (PROGRAMS[name] for name in NAMES):
        if spec.port is not None:
            assert data[spec.url_variable] == f"http://{spec.name.replace('_', '-')}:{spec.port}"


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_settings_and_none_of_compose_is_missing(name: str) -> None:
    settings = importlib.import_module(f"{PROGRAMS[name].module}.settings").Settings
    known = variables_in((settings, SharedSettings)) | {HUB_VARIABLE}
    known |= {provider.key_variable for provider in PROVIDERS.values()} if name == "gateway" else set()
    own = {each["name"] for each in _container(name)["env"]} - {"POD_NAME"}
    assert own <= known
    # Not secret, and off by default there: `env` of the values has room for them.
    later = {
        "RATCHET_OIDC",
        "RATCHET_FOUR_EYES",
        "RATCHET_ENGINES",
        "RATCHET_GATEWAY_API_KEYS",
        "RATCHET_SPAN_EXPORTER_ENDPOINT",
        HUB_VARIABLE,
    }
    assert set(services()[name]["environment"]) - later <= _variables(name)


@pytest.mark.parametrize("name", NAMES)
def test_secrets_come_by_reference(name: str) -> None:
    settings = importlib.import_module(f"{PROGRAMS[name].module}.settings").Settings
    both = {**settings_in(settings), **settings_in(SharedSettings)}.values()
    secret = {variable for setting in both if setting.is_secret for variable in setting.variables}
    secret |= {"RATCHET_CLICKHOUSE_URL", "RATCHET_KEYS", *(provider.key_variable for provider in PROVIDERS.values())}
    for each in _container(name)["env"]:
        assert ("secretKeyRef" in each.get("valueFrom", {})) or each["name"] not in secret
    assert not secret & set(_object("ConfigMap", "ratchet")["data"])


def test_no_secret_is_among_the_objects() -> None:
    assert "Secret" not in {each["kind"] for each in EVERYTHING}


def test_each_pod_has_the_seed_of_its_own_user_alone() -> None:
    for name in NAMES:
        volumes = _object("StatefulSet", name)["spec"]["template"]["spec"]["volumes"]
        (seed,) = (volume["secret"] for volume in volumes if "secret" in volume)
        assert seed["items"] == [{"key": f"{_program(name)}.seed", "path": "broker.seed"}]


def test_broker_lets_programs_of_the_registry_in_and_no_others() -> None:
    named = [who for topic in REGISTRY["topics"].values() for who in (*topic["producers"], *topic.get("consumers", []))]
    named += [
        who for bucket in REGISTRY["buckets"].values() for way in ("writers", "readers") for who in bucket.get(way, [])
    ]
    users = {name.replace("_", "-") for name in NAMES if _program(name) in named}
    assert _allows("nats", "ingress", 4222) == users | {"streams"}
    assert {name for name in NAMES if _allows(name, "egress", 4222) == {"nats"}} == set(NAMES)


def test_keys_of_the_object_store_are_with_programs_of_the_registry() -> None:
    users = {
        who for each in REGISTRY["objects"].values() for way in ("writers", "readers") for who in each.get(way, [])
    }
    assert {name for name in NAMES if "RATCHET_S3_SECRET_KEY" in _variables(name)} == {
        name for name in NAMES if _program(name) in users
    }


def test_who_calls_a_service_is_who_the_service_lets_in() -> None:
    called = [name for name in NAMES if PROGRAMS[name].port]
    for name in called:
        port, dashed = PROGRAMS[name].port or 0, name.replace("_", "-")
        callers = {other.replace("_", "-") for other in NAMES if dashed in _allows(other, "egress", port)}
        assert _allows(name, "ingress", port) == callers


@pytest.mark.parametrize("name", NAMES)
def test_who_compose_tells_of_a_service_may_call_it(name: str) -> None:
    """The egress of a service reaches all whose addresses compose gives it."""
    environment = services()[name]["environment"]
    for other in (PROGRAMS[each] for each in NAMES if PROGRAMS[each].port):
        if other.url_variable in environment:
            assert other.name.replace("_", "-") in _allows(name, "egress", other.port or 0)


def test_scalers_read_consumers_of_the_registry_and_the_brokers_account() -> None:
    consumers = load_contracts().consumers
    scaled = [each for each in OBJECTS if each["kind"] == "ScaledObject"]
    assert {each["metadata"]["name"] for each in scaled} == {"trajectory-collector", "reward-computer", "trainer-gpu"}
    for each in scaled:
        read = [trigger["metadata"] for trigger in each["spec"]["triggers"] if trigger["type"] == "nats-jetstream"]
        assert read
        for trigger in read:
            name = trigger["consumer"].replace("trainer-gpu", "trainer-<pool>")
            assert (consumers[name].stream, STREAMS_ACCOUNT) == (trigger["stream"], trigger["account"])
            assert consumers[name].service.replace("_", "-") in (each["metadata"]["name"], "trainer-worker")


def test_worker_with_a_gpu_is_there_for_open_jobs_alone() -> None:
    scaled = _object("ScaledObject", "trainer_gpu")["spec"]
    assert scaled["minReplicaCount"] == 0
    assert scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"] == {"selectPolicy": "Disabled"}
    assert scaled["triggers"][-1]["metadata"]["valueLocation"] == 'ratchet_open_jobs{pool="gpu"}'
    assert "replicas" not in _object("StatefulSet", "trainer_gpu")["spec"]


@pytest.mark.parametrize("name", ["nats", *NAMES])
def test_every_service_has_probes_and_a_disruption_budget(name: str) -> None:
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= _container(name).keys()
    assert _object("PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_no_pod_is_killed_before_its_service_had_time_to_stop(name: str) -> None:
    drain = importlib.import_module(f"{PROGRAMS[name].module}.settings").Settings.model_fields.get("drain_s")
    grace_s = _object("StatefulSet", name)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > SHUTDOWN_S + (drain.default if drain else 0)


def test_containers_run_without_root_and_without_rights() -> None:
    for each in OBJECTS:
        if each["kind"] in ("StatefulSet", "Deployment"):
            pod = each["spec"]["template"]["spec"]
            assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, False)
            for container in (*pod["containers"], *pod.get("initContainers", ())):
                assert container["securityContext"]["readOnlyRootFilesystem"]
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_broker_has_three_servers_three_copies_and_the_image_of_compose() -> None:
    broker = _object("StatefulSet", "nats")["spec"]
    assert broker["replicas"] == 3
    assert _object("ConfigMap", "ratchet")["data"]["RATCHET_REPLICAS"] == "3"
    assert _container("nats")["image"] == image("nats")


def test_guide_makes_every_key_of_the_secret_that_must_be_there() -> None:
    guide = Path(REPOSITORY / "docs" / "guides" / "kubernetes.md").read_text()
    needed = {
        each["valueFrom"]["secretKeyRef"]["key"]
        for name in NAMES
        for each in _container(name)["env"]
        if "secretKeyRef" in each.get("valueFrom", {}) and not each["valueFrom"]["secretKeyRef"].get("optional")
    }
    assert [key for key in sorted(needed) if f"--from-literal={key}=" not in guide] == []
