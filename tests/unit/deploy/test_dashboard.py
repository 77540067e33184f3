"""The dashboard file: generated, described, with units, thresholds and metrics that exist."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from tests.support.compose import REPOSITORY
from tests.support.eventful_exporter import import_all_metrics
from tools.dashboard.loop_overview import TARGET, dashboard, main

PANELS: list[dict[str, Any]] = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
KEYWORDS = {"sum", "by", "rate", "increase", "max", "histogram_quantile", "unless"}


def names(query: str) -> set[str]:
    """The metrics that a query reads."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)", "", query)
    return {word for word in re.findall(r"[a-zA-Z_:][\w:]*", bare) if word not in KEYWORDS}


def known() -> set[str]:
    """Every sample name that a service may export."""
    import_all_metrics()
    samples = {"up"}
    for family in REGISTRY.collect():
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        samples |= {family.name + ending for ending in endings}
    return samples


def test_the_file_is_fresh() -> None:
    assert main(["--check"]) == 0
    assert json.loads(TARGET.read_text()) == dashboard()


def test_rows_follow_the_loop() -> None:
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]

    assert rows == ["Collection", "Rewards", "Training", "Model performance", "Deployment health"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_has_a_description_and_reads_metrics_that_exist(panel: dict[str, Any]) -> None:
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None
    for target in panel["targets"]:
        assert names(target["expr"])
        assert names(target["expr"]) <= known()


def test_panels_do_not_overlap() -> None:
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in dashboard()["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]

    assert len(cells) == len(set(cells))


def test_alerts_read_metrics_that_exist() -> None:
    groups = yaml.safe_load((REPOSITORY / "deploy/prometheus/alerts.yml").read_text())["groups"]

    for rule in groups[0]["rules"]:
        assert names(rule["expr"]) <= known()


def test_every_panel_asks_the_provisioned_datasource() -> None:
    folder = REPOSITORY / "deploy/grafana/provisioning/datasources"
    (source,) = yaml.safe_load((folder / "prometheus.yml").read_text())["datasources"]

    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}
