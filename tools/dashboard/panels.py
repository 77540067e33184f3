"""What a dashboard is made of: panels, and the queries in them.

A query helper returns queries by legend. What it groups by it also filters by: `role`, and versions of roles, by the
variable `role` of the dashboard; `service` by the variable `service`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Queries = dict[str, str]

FILTERS = {
    "role": 'role=~"$role"',
    "policy": 'policy=~"$role@.*"',
    "model_version": 'model_version=~"$role@.*"',
    "service": 'service=~"$service"',
}
"""By label: what the dashboard's variables leave of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture: what it shows, why one looks at it, and its queries by legend."""

    title: str
    why: str
    unit: str
    shows: Mapping[str, str]
    warn: float | None = None
    """Yellow from here on."""
    alarm: float | None = None
    """Red from here on; below `warn`, it is values under it that are bad."""
    kind: str = "timeseries"
    """Or `bargauge`, `stat`, `table`: these show one value of now, or of the chosen range."""
    limits: tuple[float, float] | None = None
    needs: str | None = None
    """Without it the panel is empty: after `make demo` it is."""
    runbook: str | None = None
    """The section of docs/operations.md that says what to do."""
    console: str | None = None
    """The path of the console's page with the texts behind the figures."""


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    name: str
    """Of its file and in its address."""
    title: str
    why: str
    rows: Mapping[str, Sequence[Panel]]


def rate(metric: str, *by: str, where: str = "", name: str = "") -> Queries:
    """How often something happens in a second."""
    return _legend(by, name, _sum(by, f"rate({selected(metric, by, where)}[$__rate_interval])"))


def increase(metric: str, *by: str, where: str = "", name: str = "") -> Queries:
    """How often something happened in the chosen range."""
    return _legend(by, name, _sum(by, f"increase({selected(metric, by, where)}[$__range])"))


def total(metric: str, *by: str, where: str = "", name: str = "") -> Queries:
    """A gauge, added up over the processes that have it."""
    return _legend(by, name, _sum(by, selected(metric, by, where)))


def most(metric: str, *by: str, where: str = "", name: str = "", times: str = "") -> Queries:
    """A gauge, of the process that has most of it. `times`: a factor, such as `1000 * `."""
    grouped = f" by ({', '.join(by)})" if by else ""
    return _legend(by, name, f"{times}max{grouped} ({selected(metric, by, where)})")


def mean(histogram: str, *by: str, where: str = "", name: str = "mean", over: str = "rate") -> Queries:
    """Of what a histogram has seen. `over`: `increase` for the chosen range, where little happens."""
    window = "$__range" if over == "increase" else "$__rate_interval"
    parts = [_sum(by, f"{over}({selected(histogram + end, by, where)}[{window}])") for end in ("_sum", "_count")]
    return _legend(by, "" if by else name, " / ".join(parts))


def quantiles(histogram: str, *by: str, shares: Sequence[float] = (0.5, 0.95), over: str = "rate") -> Queries:
    """Of what a histogram has seen; named `median`, `p95`."""
    window = "$__range" if over == "increase" else "$__rate_interval"
    buckets = _sum((*by, "le"), f"{over}({selected(histogram + '_bucket', by, '')}[{window}])")
    queries: Queries = {}
    for share in shares:
        name = "median" if share == 0.5 else f"p{100 * share:g}"
        queries |= _legend(by, name, f"histogram_quantile({share:g}, {buckets})")
    return queries


def ratio(metric: str, *by: str, of: str = "", part: str, name: str = "share", over: str = "rate") -> Queries:
    """The share of the events of a counter that are a `part` of them, and not all but `of`."""
    window = "$__range" if over == "increase" else "$__rate_interval"
    parts = [_sum(by, f"{over}({selected(metric, by, where)}[{window}])") for where in (part, of)]
    return _legend(by, "" if by else name, " / ".join(parts))


def selected(metric: str, by: Sequence[str], where: str) -> str:
    """The metric's series that the dashboard's variables, and `where`, leave."""
    filters = [*filter(None, [where]), *(FILTERS[label] for label in by if label in FILTERS)]
    return f"{metric}{{{','.join(filters)}}}" if filters else metric


def _sum(by: Sequence[str], inner: str) -> str:
    return f"sum by ({', '.join(by)}) ({inner})" if by else f"sum({inner})"


def _legend(by: Sequence[str], name: str, query: str) -> Queries:
    return {" ".join([*(f"{{{{{label}}}}}" for label in by), *filter(None, [name])]): query}
