"""deploy/docker/compose.tls.yml on docker-compose.yml: every server has its own key alone, every client trusts them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from ratchet.local.local_stack.catalog import ANALYST, SERVICES, WORKFLOWS
from ratchet.local.local_stack.certificates import AUTHORITIES
from tests.support.compose import REPOSITORY, TLS_FILE, VARIABLE, compose, compose_with_tls
from tools.environment.make_env import assignments

OURS = {spec.name for spec in (*SERVICES, WORKFLOWS, ANALYST) if spec.port is not None}
SERVERS = {"nats", "clickhouse", "minio", *OURS}
LINES = {
    name: value
    for name, value in assignments((REPOSITORY / TLS_FILE).read_text().replace("#   ", "")).items()
    if name.isupper()
}
"""What .env has besides."""
EXAMPLE = assignments((REPOSITORY / ".env.example").read_text())
HEALTH = ":9100"
ADDRESS = re.compile(r"(\w+)://(?:[^@/\s]*@)?(\w+)(:\d+)")
CLIENTS = {
    name: one["environment"]
    for name, one in compose()["services"].items()
    if one["image"].startswith("ratchet") and "environment" in one and name != "grafana"
}


def services() -> dict[str, Any]:
    return compose_with_tls()["services"]


def mounts(service: str) -> dict[str, str]:
    """By volume: where a container has it."""
    return {mount.split(":")[0]: mount.split(":")[1] for mount in services()[service].get("volumes", [])}


def addresses(environment: Mapping[str, object], variables: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """The schemes of the addresses that a container is given, by host and port."""
    text = VARIABLE.sub(lambda match: variables.get(match[1], ""), " ".join(map(str, environment.values())))
    return {(host, port): scheme for scheme, host, port in ADDRESS.findall(text)}


def test_files_together_follow_the_compose_specification() -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())

    errors = jsonschema.validators.validator_for(schema)(schema).iter_errors(compose_with_tls())
    assert [f"{error.json_path}: {error.message}" for error in errors] == []
    assert set(compose(TLS_FILE)["services"]) - set(compose()["services"]) == {"certificates"}


def test_lines_of_the_environment_file_are_those_of_the_guide() -> None:
    assert set(LINES) == {"COMPOSE_FILE", "S3_ENDPOINT", "ENGINE_URL"}
    guide = (REPOSITORY / "docs/operations.md").read_text()
    assert "\n".join(f"{name}={value}" for name, value in LINES.items()) in guide
    assert LINES["COMPOSE_FILE"].split(":") == ["docker-compose.yml", TLS_FILE]


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_client_asks_the_same_servers_over_tls_and_trusts_them(name: str) -> None:
    environment = services()[name]["environment"]
    plain, encrypted = addresses(CLIENTS[name], EXAMPLE), addresses(environment, EXAMPLE | LINES)

    assert {address: encrypted[address] for address in encrypted if address[0] in SERVERS} == {
        address: "tls" if scheme == "nats" else "https" if address[1] != HEALTH else "http"
        for address, scheme in plain.items()
        if address[0] in SERVERS
    }
    assert {environment[variable] for variable in AUTHORITIES} == {f"{mounts(name)['authorities']}/authorities.crt"}
    assert services()[name]["depends_on"]["certificates"] == {"condition": "service_completed_successfully"}


def test_server_has_its_own_key_alone() -> None:
    handed_out = {place.removeprefix("/servers/"): volume for volume, place in mounts("certificates").items()}
    volumes = {name: volume for name, volume in handed_out.items() if not name.startswith("/")}
    holders = {volume: {name for name in services() if volume in mounts(name)} for volume in volumes.values()}

    assert set(volumes) == SERVERS
    made_elsewhere = {"volumes", "broker_users"}  # they have no network either
    assert {name: holders[volume] - made_elsewhere for name, volume in volumes.items()} == {
        name: {name, "certificates"} for name in SERVERS
    }
    for name in OURS:
        assert services()[name]["environment"]["RATCHET_TLS_FILE"] == f"{mounts(name)[volumes[name]]}/tls.pem"
    assert {name for name, one in services().items() if "RATCHET_TLS_FILE" in one.get("environment", {})} == OURS


def test_authority_s_key_is_where_it_is_made_alone_and_off_the_network() -> None:
    made = services()["certificates"]

    assert {name for name in services() if "authority" in mounts(name)} == {"volumes", "certificates"}
    assert (made["network_mode"], made["read_only"], made["cap_drop"]) == ("none", True, ["ALL"])
    assert made["user"] == services()["gateway"]["user"] == "10001:10001"
    assert "--folder /tls" in made["command"][-1]
    assert set(mounts("certificates")) <= set(mounts("volumes")), "which hands them over to that user"


def test_broker_reads_the_certificate_from_its_own_volume() -> None:
    config = (REPOSITORY / "deploy/nats/compose-tls.conf").read_text()

    assert services()["nats"]["command"][-1] == mounts("nats")["./deploy/nats/compose-tls.conf"]
    assert re.findall(r'_file: "(.+)"', config) == [f"{mounts('nats')['nats']}/tls.pem"] * 2
    assert mounts("nats")["./deploy/nats/compose.conf"] == "/etc/nats/" + re.findall('include "(.+)"', config)[0]


def test_clickhouse_listens_with_its_certificate_alone() -> None:
    root = ElementTree.parse(REPOSITORY / "deploy/docker/clickhouse-tls.xml").getroot()
    file = f"{mounts('clickhouse')['clickhouse_tls']}/tls.pem"

    assert {element.text for element in root.iter() if element.tag.endswith("File")} == {file}
    assert {port.tag: port.get("remove") for port in root if port.tag.endswith("_port")} == {
        "https_port": None,
        **dict.fromkeys(("http_port", "tcp_port", "mysql_port", "postgresql_port", "interserver_http_port"), "1"),
    }
    user, group = services()["clickhouse"]["user"], services()["clickhouse"]["group_add"]
    assert (user, group) == ("101:101", [services()["certificates"]["user"].split(":")[1]])


def test_servers_of_others_are_asked_over_tls_whether_they_are_ready() -> None:
    checks = {name: " ".join(services()[name]["healthcheck"]["test"]) for name in ("clickhouse", "minio")}

    assert "https://127.0.0.1:8123/ping" in checks["clickhouse"]
    assert (services()["minio"]["environment"]["MC_HOST_local"], checks["minio"].split()[-1]) == (
        "https://localhost:9000",
        "local",
    )
    assert services()["minio"]["command"][-1] == mounts("minio")["minio_tls"]
    for name in checks:
        assert services()[name]["healthcheck"]["interval"] == compose()["services"][name]["healthcheck"]["interval"]
