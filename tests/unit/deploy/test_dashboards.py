"""The dashboards: complete, described, linked, with metrics that exist; and no metric that none of them shows."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from tests.support.compose import REPOSITORY, services
from tests.support.eventful_exporter import import_all_metrics
from tools.dashboard.__main__ import dashboards, main
from tools.dashboard.boards import BOARDS, UNSHOWN
from tools.dashboard.grafana import DECIDED, RUNBOOK, anchor
from tools.dashboard.panels import FILTERS, Board, Panel

WRITTEN = dashboards()
PANELS = [(board, panel) for board in BOARDS for row in board.rows.values() for panel in row]
NAMES = [f"{board.name}: {panel.title}" for board, panel in PANELS]
PROVISIONING = REPOSITORY / "deploy/grafana/provisioning"
RULES: list[dict[str, Any]] = yaml.safe_load((REPOSITORY / "deploy/prometheus/alerts.yml").read_text())["groups"][0][
    "rules"
]
KEYWORDS = {
    "and",
    "absent",
    "by",
    "changes",
    "histogram_quantile",
    "increase",
    "max",
    "or",
    "rate",
    "sum",
    "time",
    "unless",
}
UNITS = {
    *("bytes", "cps", "currencyUSD", "dateTimeAsIso", "dateTimeFromNow", "percent", "percentunit", "s", "short"),
}
"""Those of Grafana's units that we use."""
ENDINGS = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}


def names(query: str) -> set[str]:
    """The metrics that a query reads."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)", "", query)
    return {word for word in re.findall(r"[a-zA-Z_:][\w:]*", bare) if word not in KEYWORDS}


@cache
def declared() -> dict[str, set[str]]:
    """The sample names of every metric of ours, by its name."""
    import_all_metrics()
    families = [family for family in REGISTRY.collect() if family.name.startswith(("agent_rl_", "ratchet_"))]
    endings = {family.name: ENDINGS.get(family.type, [""]) for family in families}
    return {name + (ends[0] if len(ends) == 1 else ""): {name + end for end in ends} for name, ends in endings.items()}


@cache
def known() -> set[str]:
    """Every sample name that Prometheus may have."""
    return {"up", "process_start_time_seconds"}.union(*declared().values())


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [panel for panel in WRITTEN[name]["panels"] if (panel["type"] == "row") == (kind == "row")]


def test_a_question_for_help_writes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert (ended.value.code, [*tmp_path.iterdir()]) == (0, [])
    assert "Writes Grafana's dashboards" in capsys.readouterr().out


def test_the_files_lie_where_grafana_reads_them(tmp_path: Path) -> None:
    main([str(tmp_path)])
    assert {file.stem: json.loads(file.read_text()) for file in tmp_path.iterdir()} == WRITTEN
    build = (REPOSITORY / "deploy/grafana/Dockerfile").read_text()
    (folder,) = re.findall(r"COPY --from=build /dashboards (\S+)", build)
    assert "RUN python -m tools.dashboard /dashboards" in build
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards/ratchet.yml").read_text())["providers"]
    assert provider["options"]["path"] == folder
    home = services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/{BOARDS[0].name}.json"


def test_the_image_is_built_from_what_reaches_the_builder() -> None:
    build = (REPOSITORY / "deploy/grafana/Dockerfile").read_text()
    let_through = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line[:1] == "!"]

    sources = [source for source in re.findall(r"^COPY (\S+) ", build, re.MULTILINE) if not source.startswith("--")]
    for source in sources:
        assert (REPOSITORY / source).exists()
        assert any(source == part or source.startswith(f"{part}/") for part in let_through)
    assert {"tools/dashboard", "docs/operations.md"} <= {*sources}


def test_dashboards_are_those_that_operators_ask_for() -> None:
    loop, *rest = (board.title for board in BOARDS)

    assert loop == "Loop"
    assert {*rest} >= {"RL Training", "Model Performance", "Deployment Health", "Event Plane", "Gateway", "Workflows"}


def test_no_two_dashboards_and_no_two_panels_are_called_alike() -> None:
    for part in ("uid", "title"):
        assert len({written[part] for written in WRITTEN.values()}) == len(WRITTEN)
    for written in WRITTEN.values():
        for part in ("id", "title"):
            values = [panel[part] for panel in written["panels"] if panel["type"] != "row"]
            assert len(values) == len({*values})


@pytest.mark.parametrize("name", WRITTEN)
def test_panels_do_not_overlap(name: str) -> None:
    places = [panel["gridPos"] for panel in WRITTEN[name]["panels"]]
    cells = [(place["x"] + x, place["y"] + y) for place in places for x in range(place["w"]) for y in range(place["h"])]

    assert len(cells) == len({*cells})
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=NAMES)
def test_a_panel_reads_metrics_that_exist(board: Board, panel: Panel) -> None:
    for query in panel.shows.values():
        assert names(query)
        assert names(query) <= known()


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=NAMES)
def test_a_panel_has_a_unit_thresholds_and_a_sentence(board: Board, panel: Panel) -> None:
    (written,) = (made for made in of_kind(board.name, "panel") if made["title"] == panel.title)
    defaults = written["fieldConfig"]["defaults"]
    assert defaults["unit"] in UNITS
    assert defaults["thresholds"]["steps"][0]["value"] is None
    assert len(defaults["thresholds"]["steps"]) == 1 + (panel.warn is not None) + (panel.alarm is not None)
    assert written["description"].startswith(panel.why)
    assert panel.why.endswith(".")


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=NAMES)
def test_a_panel_links_pages_that_exist(board: Board, panel: Panel) -> None:
    sections = {f"/d/{RUNBOOK}?viewPanel=panel-{section['id']}" for section in of_kind("runbook", "panel")}
    views = (REPOSITORY / "services/ratchet/console/web/src/views.ts").read_text()
    paths = {f"${{console}}/{path}" for path in re.findall(r'path: "(\w+)"', views)}

    (written,) = (made for made in of_kind(board.name, "panel") if made["title"] == panel.title)
    assert {link["url"] for link in written["links"]} <= sections | paths


def test_every_alert_has_its_section_in_the_runbook() -> None:
    sections = {anchor(panel["title"]) for panel in of_kind("runbook", "panel")}

    assert {rule["annotations"]["runbook"].partition("#")[2] for rule in RULES} <= sections


def test_the_runbook_links_nothing_that_grafana_lacks() -> None:
    numbers = {panel["id"] for panel in of_kind("runbook", "panel")}

    for panel in of_kind("runbook", "panel"):
        assert panel["options"]["content"]
        for target in re.findall(r"\]\(([^)]+)\)", panel["options"]["content"]):
            match = re.fullmatch(rf"/d/{RUNBOOK}\?viewPanel=panel-(\d+)", target)
            assert match
            assert int(match[1]) in numbers


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_queries_are_filtered_by_the_variables_of_their_dashboard(board: Board) -> None:
    variables = {variable["name"] for variable in WRITTEN[board.name]["templating"]["list"]}
    queries = [query for row in board.rows.values() for panel in row for query in panel.shows.values()]

    asked = {*re.findall(r"\$(role|service)", " ".join([*queries, DECIDED]))}
    assert variables == {*asked, "console"}
    for query in queries:
        (by, *_) = [*re.findall(r"by \(([^)]*)\)", query), ""]
        for label in {*by.split(", ")} & FILTERS.keys():
            assert FILTERS[label] in query


def test_every_metric_is_in_a_panel_or_has_a_reason_not_to_be() -> None:
    read: set[str] = set().union(*(names(query) for _, panel in PANELS for query in panel.shows.values()))
    shown = {name for name, samples in declared().items() if samples & read}

    assert declared().keys() - shown == UNSHOWN.keys()


def test_alerts_and_marks_read_metrics_that_exist() -> None:
    for query in (DECIDED, *(rule["expr"].partition("#")[0] for rule in RULES)):
        assert names(query) <= known()


def test_every_panel_asks_the_provisioned_datasource() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources/prometheus.yml").read_text())["datasources"]

    asked = {panel["datasource"]["uid"] for board in BOARDS for panel in of_kind(board.name, "panel")}
    assert asked == {source["uid"]}
