"""Makes Grafana's dashboard "Loop Overview": `python tools/dashboard/loop_overview.py [FOLDER]` writes it.

`make setup` writes it to deploy/grafana/dashboards, the build of Grafana's image into the image. Needs Python alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path("deploy", "grafana", "dashboards", "loop-overview.json")
"""Git ignores it."""
DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
WIDTH, HEIGHT, PER_ROW = 8, 7, 3
"""Grafana's grid is 24 columns wide."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: what it shows, why one looks at it, and its queries by legend."""

    title: str
    description: str
    unit: str
    queries: Mapping[str, str]
    warn: float | None = None
    """Yellow from here on."""
    alarm: float | None = None
    """Red from here on; below `warn`, it is values under it that are bad."""
    kind: str = "timeseries"
    limits: tuple[float, float] | None = None


def quantile(share: float, buckets: str, by: str = "le") -> str:
    """The query of a histogram's quantile; `buckets` is the rate or increase of its buckets."""
    return f"histogram_quantile({share:g}, sum by ({by}) ({buckets}))"


ROWS: Mapping[str, Sequence[Panel]] = {
    "Collection": (
        Panel(
            "Trajectories collected",
            "Trajectories stored per second, by kind of agent; `other`: one of its own words.",
            "cps",
            {"{{agent_type}}": "sum by (agent_type) (rate(agent_rl_trajectories_collected_total[$__rate_interval]))"},
        ),
        Panel(
            "Trajectories by domain",
            "Trajectories stored in the chosen range, by domain of the task; `other`: one of its own words.",
            "short",
            {"{{task_domain}}": "sum by (task_domain) (increase(agent_rl_trajectories_collected_total[$__range]))"},
            kind="barchart",
        ),
        Panel(
            "Turns per trajectory",
            "Median and 95th percentile. A sudden rise means agents that no longer come to an end.",
            "short",
            {
                "median": quantile(0.5, "rate(agent_rl_trajectory_length_bucket[$__rate_interval])"),
                "p95": quantile(0.95, "rate(agent_rl_trajectory_length_bucket[$__rate_interval])"),
            },
            warn=20,
            alarm=50,
        ),
        Panel(
            "Ledger",
            "What became of the messages of all streams, per second. Dead ones need a look.",
            "cps",
            {"{{outcome}}": "sum by (outcome) (rate(ratchet_ledger_outcomes_total[$__rate_interval]))"},
        ),
        Panel(
            "Not accounted for",
            "Settled messages that the ledger does not know. Anything but 0 is a fault.",
            "short",
            {"{{stream}}": "max by (stream) (ratchet_ledger_missing)"},
            alarm=1,
            kind="stat",
        ),
        Panel(
            "Calls by what bars them",
            "Recorded calls per second, by the reason why no learner may use them. `ratchet capture report` says what"
            " to change.",
            "cps",
            {
                "{{role}} {{trainable}} {{reason}}": "sum by (role, trainable, reason)"
                " (rate(ratchet_gateway_captured_turns_total[$__rate_interval]))"
            },
        ),
        Panel(
            "Failing checks",
            "1 while a check of a service's readiness fails.",
            "short",
            {"{{service}} {{check}}": "max by (service, check) (ratchet_check_failing)"},
            alarm=1,
            limits=(0, 1),
        ),
    ),
    "Rewards": (
        Panel(
            "Mean reward",
            "Mean total reward of trajectories that got their first reward.",
            "percentunit",
            {
                "mean": "sum(rate(agent_rl_trajectory_reward_sum[$__rate_interval]))"
                " / sum(rate(agent_rl_trajectory_reward_count[$__rate_interval]))"
            },
            warn=0.6,
            alarm=0.4,
            limits=(0, 1),
        ),
        Panel(
            "Distribution of rewards",
            "Quartiles. A mean that rises while they part company deserves a look at what is rewarded.",
            "percentunit",
            {
                f"p{percent}": quantile(percent / 100, "rate(agent_rl_trajectory_reward_bucket[$__rate_interval])")
                for percent in (25, 50, 75)
            },
            limits=(0, 1),
        ),
        Panel(
            "Revisions",
            "Rewards revised per second because feedback came late.",
            "cps",
            {"revisions": "sum(rate(ratchet_reward_revisions_total[$__rate_interval]))"},
        ),
    ),
    "Training": (
        Panel(
            "Attempts",
            "Training attempts that ended in the chosen range, by status.",
            "short",
            {"{{status}}": "sum by (status) (increase(agent_rl_training_jobs_total[$__range]))"},
            kind="barchart",
        ),
        Panel(
            "Jobs",
            "Jobs by state now. A queue that only grows needs another worker.",
            "short",
            {"{{state}}": "max by (state) (ratchet_jobs)"},
        ),
        Panel(
            "Duration",
            "Median and 95th percentile of completed attempts in the chosen range.",
            "s",
            {
                "median": quantile(0.5, "increase(agent_rl_training_duration_seconds_bucket[$__range])"),
                "p95": quantile(0.95, "increase(agent_rl_training_duration_seconds_bucket[$__range])"),
            },
            warn=7200,
            alarm=14400,
        ),
        Panel(
            "Trajectories learnt from",
            "Mean number of trajectories of a completed attempt in the chosen range.",
            "short",
            {
                "mean": "sum(increase(agent_rl_training_samples_sum[$__range]))"
                " / sum(increase(agent_rl_training_samples_count[$__range]))"
            },
        ),
        Panel(
            "Wait for a slot",
            "95th percentile of the time from a job's creation to its first dispatch.",
            "s",
            {"p95": quantile(0.95, "increase(ratchet_job_queue_wait_seconds_bucket[$__range])")},
            warn=900,
            alarm=3600,
        ),
        Panel(
            "Busy slots",
            "Trainings that run now.",
            "short",
            {"{{service}}": "sum by (service) (ratchet_trainer_busy_slots)"},
        ),
    ),
    "Model performance": (
        Panel(
            "Reward by policy",
            "Mean reward during the rollout, by policy.",
            "percentunit",
            {"{{model_version}}": "max by (model_version) (agent_rl_model_reward_mean)"},
            limits=(0, 1),
        ),
        Panel(
            "Held-out score",
            "Mean score on held-out tasks before traffic, by policy.",
            "percentunit",
            {"{{model_version}} {{task_type}}": "max by (model_version, task_type) (agent_rl_model_benchmark_score)"},
            limits=(0, 1),
        ),
        Panel(
            "Error rate by policy",
            "Share of calls that ended in an error, by policy.",
            "percentunit",
            {"{{model_version}}": "max by (model_version) (agent_rl_model_error_rate)"},
            warn=0.02,
            alarm=0.05,
            limits=(0, 1),
        ),
        Panel(
            "Errors by policy",
            "Calls per second that ended in an error, by policy.",
            "cps",
            {"{{model_version}}": "sum by (model_version) (rate(agent_rl_model_errors_total[$__rate_interval]))"},
        ),
        Panel(
            "Gateway latency",
            "Median, 95th and 99th percentile of the time to the end of the answer.",
            "s",
            {
                f"{name} {{{{role}}}}": quantile(
                    share, "rate(ratchet_gateway_call_seconds_bucket[$__rate_interval])", "le, role"
                )
                for name, share in (("median", 0.5), ("p95", 0.95), ("p99", 0.99))
            },
            warn=5,
            alarm=30,
        ),
        Panel(
            "Calls",
            "Calls per second at the gateway, by policy and status.",
            "cps",
            {"{{policy}} {{status}}": "sum by (policy, status) (rate(ratchet_gateway_calls_total[$__rate_interval]))"},
        ),
        Panel(
            "Latency by policy",
            "95th percentile of the time to the end of the answer, by policy; version 0 is an upstream's model.",
            "s",
            {"{{policy}}": quantile(0.95, "rate(ratchet_gateway_call_seconds_bucket[$__rate_interval])", "le, policy")},
        ),
        Panel(
            "Tokens by policy",
            "Tokens per second, by policy and kind. Cached ones are part of the prompt, reasoning of the completion.",
            "cps",
            {"{{policy}} {{kind}}": "sum by (policy, kind) (rate(ratchet_gateway_tokens_total[$__rate_interval]))"},
        ),
        Panel(
            "Tokens by key",
            "Tokens per second, by the id of the key and kind.",
            "cps",
            {"{{key}} {{kind}}": "sum by (key, kind) (rate(ratchet_gateway_tokens_total[$__rate_interval]))"},
        ),
        Panel(
            "Cost by policy",
            "US dollars in the chosen range, by policy, at the prices that are set.",
            "currencyUSD",
            {"{{policy}}": "sum by (policy) (increase(ratchet_gateway_cost_usd_total[$__range]))"},
            kind="barchart",
        ),
        Panel(
            "Cost by key",
            "US dollars in the chosen range, by the id of the key.",
            "currencyUSD",
            {"{{key}}": "sum by (key) (increase(ratchet_gateway_cost_usd_total[$__range]))"},
            kind="barchart",
        ),
        Panel(
            "Engine's time by policy",
            "Share of its time in which the local engine computes, by policy; together at most 1.",
            "percentunit",
            {"{{policy}}": "sum by (policy) (rate(ratchet_engine_busy_seconds_total[$__rate_interval]))"},
            warn=0.8,
            limits=(0, 1),
        ),
        Panel(
            "Engine's rows by policy",
            "Answers that the local engine computes, and those that wait for room, by policy.",
            "short",
            {
                "{{policy}} computed": "sum by (policy) (ratchet_engine_running_rows)",
                "{{policy}} waiting": "sum by (policy) (ratchet_engine_waiting_rows)",
            },
        ),
        Panel(
            "Open calls by replica",
            "Calls that replicas of engines have not answered to the end.",
            "short",
            {"{{engine}} {{replica}}": "sum by (engine, replica) (ratchet_gateway_replica_calls)"},
        ),
        Panel(
            "Failures by replica",
            "Calls per second that failed by the fault of a replica, and those that another one answered instead.",
            "cps",
            {
                "{{engine}} {{replica}}": "sum by (engine, replica)"
                " (rate(ratchet_gateway_replica_failures_total[$__rate_interval]))",
                "{{engine}} sent elsewhere": "sum by (engine)"
                " (rate(ratchet_gateway_repeated_calls_total[$__rate_interval]))",
            },
        ),
        Panel(
            "Cache of answers",
            "Look-ups per second, by outcome.",
            "cps",
            {"{{outcome}}": "sum by (outcome) (rate(ratchet_gateway_cache_lookups_total[$__rate_interval]))"},
        ),
    ),
    "Workflows": (
        Panel(
            "Success rate",
            "Share of workflows that succeeded as a whole, by the planner's role. Cancelled ones do not count.",
            "percentunit",
            {
                "{{role}}": 'sum by (role) (rate(ratchet_workflows_total{status="succeeded"}[$__rate_interval]))'
                ' / sum by (role) (rate(ratchet_workflows_total{status!="cancelled"}[$__rate_interval]))'
            },
            warn=0.9,
            alarm=0.7,
            limits=(0, 1),
        ),
        Panel(
            "Average cost",
            "US dollars of a workflow, planning included, by the planner's role.",
            "currencyUSD",
            {
                "{{role}}": "sum by (role) (rate(ratchet_workflow_cost_usd_sum[$__rate_interval]))"
                " / sum by (role) (rate(ratchet_workflow_cost_usd_count[$__rate_interval]))"
            },
        ),
        Panel(
            "Average latency",
            "Seconds from the order to the last answer, by the planner's role.",
            "s",
            {
                "{{role}}": "sum by (role) (rate(ratchet_workflow_seconds_sum[$__rate_interval]))"
                " / sum by (role) (rate(ratchet_workflow_seconds_count[$__rate_interval]))"
            },
        ),
        Panel(
            "Valid plans",
            "Share of plans that could be run as they came; the others were repaired once, or refused.",
            "percentunit",
            {
                "{{role}}": 'sum by (role) (rate(ratchet_workflow_plans_total{outcome="valid"}[$__rate_interval]))'
                " / sum by (role) (rate(ratchet_workflow_plans_total[$__rate_interval]))"
            },
            warn=0.98,
            alarm=0.9,
            limits=(0, 1),
        ),
        Panel(
            "Sub-tasks that fail",
            "Failed sub-tasks per second, by their type: which kind of worker to look at.",
            "cps",
            {
                "{{task_type}}": "sum by (task_type)"
                ' (rate(ratchet_workflow_sub_tasks_total{status="failed"}[$__rate_interval]))'
            },
        ),
        Panel("Under way", "Workflows that run now.", "short", {"workflows": "sum(ratchet_workflows_active)"}),
    ),
    "Self-learning": (
        Panel(
            "Trajectories looked at",
            "Per second, by role; none while no window has ended, or too few trajectories are in it.",
            "cps",
            {"{{role}}": "sum by (role) (rate(ratchet_analyst_episodes_total[$__rate_interval]))"},
        ),
        Panel(
            "Patterns",
            "By state: open ones go wrong now, closed ones are over.",
            "short",
            {"{{state}}": "sum by (state) (max by (role, state) (ratchet_analyst_patterns))"},
        ),
        Panel(
            "Plans",
            "By state.",
            "short",
            {"{{state}}": "sum by (state) (max by (role, state) (ratchet_analyst_plans))"},
        ),
        Panel(
            "Plans that helped",
            "Share of the plans that ran to their end which were validated, by role.",
            "percentunit",
            {"{{role}}": "max by (role) (ratchet_analyst_plan_success_ratio)"},
            limits=(0, 1),
        ),
        Panel(
            "Improvement per plan",
            "Mean difference between the arms, by role and measure, in the measure's unit: above 0 is better.",
            "short",
            {"{{role}} {{measure}}": "max by (role, measure) (ratchet_analyst_plan_improvement)"},
        ),
        Panel(
            "Last look",
            "When all roles were looked at last: more than an hour ago means that the analyst stands still.",
            "dateTimeFromNow",
            {"all roles": "1000 * max(ratchet_analyst_looked_timestamp_seconds)"},
        ),
    ),
    "Deployment health": (
        Panel(
            "Traffic",
            "Share of new trajectories by policy, 0 to 100.",
            "percent",
            {"{{model_version}}": "max by (model_version) (agent_rl_model_traffic_percentage)"},
            limits=(0, 100),
        ),
        Panel(
            "Changes of state",
            "Policies registered, put on canary, promoted, rolled back and aborted in the chosen range.",
            "short",
            {"{{status}}": "sum by (status) (increase(agent_rl_model_deployments_total[$__range]))"},
            kind="barchart",
        ),
        Panel(
            "Evidence",
            "Combined e-values of the running rollout. Promotion and rollback each need 20.",
            "short",
            {"{{role}} {{test}}": "max by (role, test) (ratchet_rollout_e_value)"},
            warn=4,
            alarm=20,
        ),
        Panel(
            "Lapsed leases",
            "1 while gateways serve stable because the deployer does not renew the canary.",
            "short",
            {"{{role}}": "max by (role) (ratchet_gateway_lease_lapsed)"},
            alarm=1,
            limits=(0, 1),
        ),
        Panel(
            "Replicas away",
            "1 while a replica of an engine gets no calls.",
            "short",
            {"{{engine}} {{replica}}": "max by (engine, replica) (ratchet_gateway_replica_away)"},
            warn=1,
            limits=(0, 1),
        ),
        Panel(
            "Events waiting at the gateway",
            "Events that no stream has stored yet, and those lost because there was no room.",
            "short",
            {"waiting": "sum(ratchet_gateway_pending)", "lost": "sum(ratchet_gateway_overflowed)"},
            warn=1000,
            alarm=10000,
        ),
        Panel(
            "Services up",
            "1 while Prometheus reaches the service.",
            "short",
            {"{{service}}": 'max by (service) (up{job="ratchet"})'},
            warn=1,
            alarm=0.5,
            kind="stat",
        ),
    ),
}


def dashboard() -> dict[str, Any]:  # JSON: Grafana's own model, which has no types here
    """The dashboard in Grafana's model."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": []}
            | {"gridPos": {"x": 0, "y": y, "w": 24, "h": 1}}
        )
        y += 1
        for place, panel in enumerate(row):
            x, down = place % PER_ROW * WIDTH, place // PER_ROW * HEIGHT
            panels.append(
                _panel(len(panels) + 1, panel) | {"gridPos": {"x": x, "y": y + down, "w": WIDTH, "h": HEIGHT}}
            )
        y += -(-len(row) // PER_ROW) * HEIGHT
    return {
        "uid": "ratchet-loop-overview",
        "title": "Loop Overview",
        "tags": ["ratchet"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "utc",
        "panels": panels,
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    instant = panel.kind in ("stat", "barchart")
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": _thresholds(panel)}
    if panel.limits is not None:
        defaults |= {"min": panel.limits[0], "max": panel.limits[1]}
    if panel.kind == "timeseries":
        shown = "off" if panel.alarm is None and panel.warn is None else "line"
        defaults["custom"] = {"thresholdsStyle": {"mode": shown}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": DATASOURCE, "expr": query, "legendFormat": legend}
            | {"instant": instant, "range": not instant}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _thresholds(panel: Panel) -> dict[str, Any]:
    """Green, yellow, red from below; the other way round where low values are the bad ones."""
    if panel.warn is not None and panel.alarm is not None and panel.alarm < panel.warn:
        steps = [(None, "red"), (panel.alarm, "yellow"), (panel.warn, "green")]
    else:
        known = [(panel.warn, "yellow"), (panel.alarm, "red")]
        steps = [(None, "green"), *((value, colour) for value, colour in known if value is not None)]
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


def main(arguments: Sequence[str]) -> None:
    """Write it to a folder."""
    folder = Path(arguments[0]) if arguments else FILE.parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE.name).write_text(json.dumps(dashboard(), indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
