"""Boards in Grafana's own JSON, and the runbook as a dashboard, so that panels can link its sections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tools.dashboard.panels import Board, Panel

Json = dict[str, Any]
"""Grafana's model, which has no types here."""

DATASOURCE: Json = {"type": "prometheus", "uid": "prometheus"}
COLUMNS, WIDTH, HEIGHT = 24, 8, 8
"""Grafana's grid, and a panel in it."""
VARIABLES: Mapping[str, Json] = {
    "role": {"label": "Role", "query": 'label_values({job="ratchet",role!=""}, role)'},
    "service": {"label": "Service", "query": 'label_values(up{job="ratchet"}, service)'},
}
RUNBOOK = "ratchet-runbook"
"""The address of the runbook's dashboard."""
DECIDED = 'max by (role, verdict) (1000 * ratchet_rollout_decided_timestamp_seconds{role=~"$role"})'


def dashboard(board: Board, sections: Mapping[str, int]) -> Json:
    """A board. `sections`: the panel of the runbook that has each section."""
    panels = [
        *_placed((title, [_panel(panel, sections) for panel in row]) for title, row in board.rows.items()),
    ]
    return _frame(board.name, board.title, board.why, panels) | {
        "templating": {"list": [*_variables(board), _console()]},
        "annotations": {"list": [_deployments()]},
        "links": [
            {"type": "dashboards", "title": "Dashboards", "tags": ["ratchet"], "asDropdown": True, "keepTime": True}
            | {"includeVars": True},
            {"type": "link", "title": "Console", "url": "${console}", "targetBlank": True},
            {"type": "link", "title": "Runbook", "url": f"/d/{RUNBOOK}"},
        ],
    }


def runbook(text: str) -> tuple[Json, dict[str, int]]:
    """The sections of docs/operations.md under "When an alert fires" as a dashboard, and the panel of each."""
    sections = dict(_sections(text))
    numbers = {anchor(title): number for number, title in enumerate(sections, start=2)}
    texts = [
        {
            "type": "text",
            "title": title,
            "description": "",
            "options": {"mode": "markdown", "content": _here(content, numbers)},
        }
        for title, content in sections.items()
    ]
    panels = [*_placed([("When an alert fires", texts)])]
    return _frame("runbook", "Runbook", "What each alert asks of you: docs/operations.md.", panels), numbers


def anchor(title: str) -> str:
    """A heading's, as pages of markdown have it."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def _sections(text: str) -> Iterator[tuple[str, str]]:
    chapter = text.partition("## When an alert fires\n")[2].partition("\n## ")[0]
    for section in chapter.split("\n### ")[1:]:
        title, _, content = section.partition("\n")
        yield title, content.strip()


def _here(content: str, numbers: Mapping[str, int]) -> str:
    """The text with links that lead somewhere in Grafana; those to other pages name the page."""

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        if target.startswith("#") and target[1:] in numbers:
            return f"[{words}]({_section(numbers[target[1:]])})"
        page = "operations.md" + target if target.startswith("#") else target
        return f"{words} (`docs/{page}`)"

    return re.sub(r"\[([^]]+)\]\(([^)\s]+)\)", link, content)


def _section(number: int) -> str:
    return f"/d/{RUNBOOK}?viewPanel=panel-{number}"


def _frame(name: str, title: str, why: str, panels: list[Json]) -> Json:
    return {
        "uid": f"ratchet-{name}",
        "title": title,
        "description": why,
        "tags": ["ratchet"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "utc",
        "panels": panels,
    }


def _placed(rows: Any) -> Iterator[Json]:
    """Panels with their ids and places in the grid, below the title of their row."""
    number, y = 1, 0
    for title, panels in rows:
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}
        number, y = number + 1, y + 1
        for index, panel in enumerate(panels):
            down, across = divmod(index, COLUMNS // WIDTH)
            place = {"x": across * WIDTH, "y": y + down * HEIGHT, "w": WIDTH, "h": HEIGHT}
            yield {"id": number, **panel, "gridPos": place}
            number += 1
        y += -(-len(panels) // (COLUMNS // WIDTH)) * HEIGHT


def _panel(panel: Panel, sections: Mapping[str, int]) -> Json:
    instant = panel.kind != "timeseries"
    defaults: Json = {"unit": panel.unit, "thresholds": _thresholds(panel)}
    if panel.limits is not None:
        defaults |= {"min": panel.limits[0], "max": panel.limits[1]}
    if panel.kind == "timeseries":
        shown = "off" if panel.alarm is None and panel.warn is None else "line"
        defaults["custom"] = {"thresholdsStyle": {"mode": shown}}
    table = panel.kind == "table"
    links = []
    if panel.runbook is not None:
        links.append({"title": "Runbook", "url": _section(sections[panel.runbook])})
    if panel.console is not None:
        links.append({"title": "Console", "url": f"${{console}}/{panel.console}", "targetBlank": True})
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.why if panel.needs is None else f"{panel.why} Empty without {panel.needs}.",
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {},
        "links": links,
        "transformations": [{"id": "organize", "options": {"excludeByName": {"Time": True}}}] if table else [],
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": DATASOURCE, "expr": query, "legendFormat": legend}
            | {"instant": instant, "range": not instant, "format": "table" if table else "time_series"}
            for place, (legend, query) in enumerate(panel.shows.items())
        ],
    }


def _thresholds(panel: Panel) -> Json:
    """Green, yellow, red from below; the other way round where low values are the bad ones."""
    if panel.warn is not None and panel.alarm is not None and panel.alarm < panel.warn:
        steps = [(None, "red"), (panel.alarm, "yellow"), (panel.warn, "green")]
    else:
        known = [(panel.warn, "yellow"), (panel.alarm, "red")]
        steps = [(None, "green"), *((value, colour) for value, colour in known if value is not None)]
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


def _variables(board: Board) -> list[Json]:
    """Those that queries of the board, or its marks, ask for."""
    queries = " ".join(
        [DECIDED, *(query for row in board.rows.values() for panel in row for query in panel.shows.values())]
    )
    return [_variable(name, **spec) for name, spec in VARIABLES.items() if f"${name}" in queries]


def _variable(name: str, label: str, query: str) -> Json:
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _console() -> Json:
    """Where the console is, which the reader may change: Grafana does not know it."""
    address = "http://127.0.0.1:8084"
    current = {"text": address, "value": address}
    return {"type": "textbox", "name": "console", "label": "Console", "query": address, "current": current}


def _deployments() -> Json:
    """A mark where a rollout was decided."""
    return {
        "name": "Rollouts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": DECIDED,
        "step": "60s",
        "titleFormat": "{{role}}: {{verdict}}",
        "useValueForTime": True,
    }
