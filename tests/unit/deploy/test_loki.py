"""The files of Loki and Alloy: they are read here as text and YAML, and neither program runs in a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

LOKI = Path("deploy/loki/loki.yml")
ALLOY = Path("deploy/loki/config.alloy")
SOURCE = Path("deploy/grafana/provisioning/datasources/loki.yml")


def loki() -> Any:
    return yaml.safe_load(LOKI.read_text())


def test_loki_keeps_logs_for_thirty_days_and_removes_older_ones() -> None:
    made = loki()
    assert made["limits_config"]["retention_period"] == f"{30 * 24}h"
    compactor = made["compactor"]
    assert (compactor["retention_enabled"], compactor["delete_request_store"]) == (True, "filesystem")
    assert [schema["index"]["period"] for schema in made["schema_config"]["configs"]] == ["24h"]


def test_loki_keeps_everything_in_its_volume() -> None:
    made = loki()
    folders = [made["compactor"]["working_directory"], *made["common"]["storage"]["filesystem"].values()]
    assert all(folder.startswith(made["common"]["path_prefix"] + "/") for folder in folders)


def test_alloy_and_grafana_find_loki_where_it_listens() -> None:
    address = f"http://loki:{loki()['server']['http_listen_port']}"
    (source,) = yaml.safe_load(SOURCE.read_text())["datasources"]
    assert source["url"] == address
    assert f'url = "{address}/loki/api/v1/push"' in ALLOY.read_text()


def test_alloy_refers_only_to_components_that_its_file_declares() -> None:
    text = ALLOY.read_text()
    declared = {f"{kind}.{label}" for kind, label in re.findall(r'^([a-z._]+) "(\w+)" \{', text, re.MULTILINE)}
    used = set(re.findall(r"\b((?:local|loki)\.[a-z_.]+\.\w+)\.(?:receiver|targets)\b", text))
    assert used == declared - {"loki.source.file.containers"}
