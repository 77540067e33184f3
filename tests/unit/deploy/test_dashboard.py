"""The dashboard: written where it is asked for, described, with units, thresholds and metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from tests.support.compose import REPOSITORY, services
from tests.support.eventful_exporter import import_all_metrics
from tools.dashboard.loop_overview import dashboard, main

PANELS: list[dict[str, Any]] = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
PROVISIONING = REPOSITORY / "deploy/grafana/provisioning"
KEYWORDS = {
    "sum",
    "by",
    "rate",
    "increase",
    "max",
    "histogram_quantile",
    "unless",
    "or",
    "and",
    "absent",
    "changes",
    "time",
}


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


def test_the_file_lies_where_grafana_reads_it(tmp_path: Path) -> None:
    main([str(tmp_path)])
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text()) == dashboard()
    build = (REPOSITORY / "deploy/grafana/Dockerfile").read_text()
    (source,) = re.findall(r"COPY (tools/\S+) /\n", build)
    (folder,) = re.findall(r"COPY --from=build /dashboards (\S+)", build)
    assert f"RUN python /{Path(source).name} /dashboards" in build
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards/ratchet.yml").read_text())["providers"]
    assert provider["options"]["path"] == folder
    home = services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/{file.name}"


def test_rows_follow_the_loop() -> None:
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]

    before = ["Collection", "Rewards", "Training", "Model performance", "Workflows"]
    assert rows == [*before, "Self-learning", "Deployment health"]


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
    (source,) = yaml.safe_load((PROVISIONING / "datasources/prometheus.yml").read_text())["datasources"]

    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}
