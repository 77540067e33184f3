"""Test servers: one variable chooses, and the containers are those of docker-compose.yml."""

from __future__ import annotations

import pytest

from ratchet.core.service.settings import SharedSettings
from tests.support.compose import REPOSITORY, compose, services
from tests.support.containers import NO_USERS, ContainerSpec, clickhouse_container, nats_container, s3_container
from tests.support.servers import in_containers

SPECS: dict[str, ContainerSpec] = {
    "nats": nats_container(),
    "clickhouse": clickhouse_container(),
    "minio": s3_container("key", "secret"),
}


def test_servers_are_embedded_unless_containers_are_asked_for() -> None:
    assert not in_containers({})
    assert not in_containers({"RATCHET_TEST_SERVERS": "embedded"})
    assert in_containers({"RATCHET_TEST_SERVERS": "containers"})


def test_another_choice_is_refused_with_both_names() -> None:
    with pytest.raises(pytest.UsageError, match="embedded or containers, not 'podman'"):
        in_containers({"RATCHET_TEST_SERVERS": "podman"})


@pytest.mark.parametrize("name", sorted(SPECS))
def test_container_has_image_command_check_and_variables_of_the_file(name: str) -> None:
    spec, service = SPECS[name], services()[name]

    assert spec.image == service["image"]
    assert list(spec.command) == service.get("command", [])
    assert ["CMD", *spec.ready] == service["healthcheck"]["test"]
    assert set(spec.env) <= set(service.get("environment", {}))


@pytest.mark.parametrize("name", sorted(SPECS))
def test_clients_reach_the_port_of_the_compose_file(name: str) -> None:
    spec = SPECS[name]
    urls = [part for key in ("x-broker", "x-warehouse", "x-objects") for part in compose()[key].values()]

    assert any(f"{name}:{spec.port}" in url for url in urls)
    assert spec.url.format(port=1).endswith(":1")


@pytest.mark.parametrize("name", sorted(SPECS))
def test_mounted_files_exist_where_the_compose_file_mounts_them(name: str) -> None:
    for place, source in SPECS[name].mounts.items():
        assert (REPOSITORY / source).is_file()
        assert source == NO_USERS or f"./{source}:{place}:ro" in services()[name]["volumes"]


def test_the_settings_take_the_urls() -> None:
    urls = {name: spec.url.format(port=1000) for name, spec in SPECS.items()}

    settings = SharedSettings(nats_url=urls["nats"], clickhouse_url=urls["clickhouse"], s3_endpoint=urls["minio"])

    assert settings.nats_url.endswith(":1000")
