"""Each rule of deploy/prometheus/alerts.yml fires once where it should, and is over when its cause is: by promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.compose import REPOSITORY
from tests.support.prometheus import PROMTOOL, WITH_PROMETHEUS

FILE = REPOSITORY / "deploy/prometheus/alerts.yml"
RULES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["groups"][0]["rules"]
TWICE = ("a", "b")
"""Processes that both have the series: their alert is one alert."""


@dataclass(frozen=True)
class Case:
    """What a rule sees, minute by minute, and what it makes of that."""

    rule: str
    series: Mapping[str, str]
    """Values a minute apart, as promtool writes them."""
    fires: int
    """A minute at which it fires; it does not at `before`."""
    over: int
    """A minute at which it no longer fires."""
    summary: str
    labels: Mapping[str, str]
    before: int = 1


def check(name: str, service: str = "gateway") -> dict[str, str]:
    """A check that fails from minute 2 until minute 14, in two processes of a service."""
    labels = f'job="ratchet",service="{service}",check="{name}"'
    return {f'ratchet_check_failing{{{labels},instance="{process}"}}': "0+0x1 1+0x11 0+0x20" for process in TWICE}


def gauge(metric: str, labels: str, bad: float) -> dict[str, str]:
    """A gauge that is too high from minute 2 until minute 14, in two processes."""
    return {f'{metric}{{{labels},instance="{process}"}}': f"0+0x1 {bad:g}+0x11 0+0x20" for process in TWICE}


def event(metric: str, labels: str) -> dict[str, str]:
    """A counter of which one event comes in minute 5."""
    return {f"{metric}{{{labels}}}": "0+0x4 1+0x60"}


DEPLOYMENTS = "agent_rl_model_deployments_total"
OUTCOMES = "ratchet_ledger_outcomes_total"
SLOW = {
    'ratchet_gateway_call_seconds_bucket{role="support",le="60"}': "0+0x20 100+100x40",
    'ratchet_gateway_call_seconds_bucket{role="support",le="120"}': "0+100x60",
    'ratchet_gateway_call_seconds_bucket{role="support",le="+Inf"}': "0+100x60",
    'ratchet_gateway_call_seconds_count{role="support"}': "0+100x60",
}
TURNS = {"stream": "RL_TURNS"}
SUPPORT = {"role": "support"}
CASES = (
    Case(
        "TrainingKeepsFailing",
        gauge("ratchet_training_failures_in_a_row", 'role="support"', 3),
        3,
        15,
        "The last three trainings of support failed.",
        SUPPORT,
    ),
    Case(
        "ValidationFailed",
        event(DEPLOYMENTS, 'status="aborted"'),
        6,
        25,
        "A candidate was refused by a gate or aborted.",
        {},
    ),
    Case("RolledBack", event(DEPLOYMENTS, 'status="rolled_back"'), 6, 25, "A policy was taken back.", {}),
    Case(
        "CanarySuspended",
        gauge("ratchet_rollout_suspended", 'role="support"', 1),
        3,
        15,
        "The canary of support is suspended, and a person has to decide.",
        SUPPORT,
    ),
    Case(
        "OutcomesLate",
        gauge("ratchet_rollout_outcomes_behind_seconds", 'role="support"', 301),
        4,
        15,
        "The outcomes of support come minutes late, and its canary can hardly be judged.",
        SUPPORT,
        2,
    ),
    Case(
        "CollectionErrors",
        check("collection", "trajectory_collector"),
        3,
        15,
        "trajectory_collector loses, or cannot store, more than a tenth of what agents do.",
        {"service": "trajectory_collector"},
    ),
    Case(
        "GatewayErrors",
        check("errors"),
        3,
        15,
        "More than a tenth of the gateway's calls fail.",
        {"service": "gateway"},
    ),
    Case(
        "DeadLetters",
        event(OUTCOMES, 'stream="RL_TURNS",outcome="dead"'),
        6,
        25,
        "A message of RL_TURNS could not be handled.",
        TURNS,
    ),
    Case(
        "DeadLettersFill",
        gauge("ratchet_stream_fill_ratio", 'stream="RL_DEADLETTERS"', 0.6),
        3,
        15,
        "The stream of dead letters is more than half full; a full one drops its oldest.",
        {},
    ),
    Case(
        "DeadLettersDropped",
        event("ratchet_dead_letters_dropped_total", 'service="trajectory_collector"'),
        6,
        25,
        "The stream of dead letters is full and drops its oldest.",
        {},
    ),
    Case(
        "BrokerLost",
        check("broker"),
        8,
        15,
        "gateway has been without the broker, or a stream has taken nothing from it, for five minutes.",
        {"service": "gateway"},
        6,
    ),
    Case(
        "CheckFailing",
        check("engines"),
        5,
        15,
        "gateway is not ready, or notes a fault: engines.",
        {"service": "gateway", "check": "engines"},
        3,
    ),
    Case(
        "ServiceUnreachable",
        {
            'up{job="ratchet",service="trainer_worker"}': "1+0x1 0+0x11 1+0x20",
            'up{job="ratchet",service="gateway"}': "1+0x40",
        },
        5,
        15,
        "trainer_worker does not answer.",
        {"job": "ratchet", "service": "trainer_worker"},
        3,
    ),
    Case(
        "ServiceUnreachable",
        {'up{job="ratchet",service="gateway"}': "1+0x1 _x12 1+0x20"},
        10,
        15,
        "gateway does not answer.",
        {"job": "ratchet", "service": "gateway"},
        3,
    ),
    Case(
        "ReplicaAway",
        gauge("ratchet_gateway_replica_away", 'engine="local",replica="one"', 1),
        8,
        15,
        "Replica one of engine local gets no calls: it fails.",
        {"engine": "local", "replica": "one"},
        6,
    ),
    Case(
        "ServiceRestarts",
        {'process_start_time_seconds{job="ratchet",service="gateway"}': "1+0x2 2+0x1 3+0x1 4+0x40"},
        8,
        30,
        "gateway has started several times within a quarter of an hour.",
        {"service": "gateway"},
    ),
    Case(
        "LedgerImbalance",
        {
            'ratchet_ledger_missing{stream="RL_TURNS"}': "0+0x1 2+0x11 0+0x20",
            'ratchet_ledger_absent{stream="RL_TURNS"}': "0+0x40",
        },
        4,
        15,
        "Settled messages of RL_TURNS are not accounted for, or their rows are gone.",
        TURNS,
        2,
    ),
    Case(
        "MessagesLost",
        event(OUTCOMES, 'stream="RL_TURNS",outcome="lost"'),
        6,
        25,
        "Messages of RL_TURNS are neither in ClickHouse nor in the stream any more.",
        TURNS,
    ),
    Case(
        "EventsSkipped",
        event("ratchet_projection_skipped_total", 'service="reward_computer",projection="baselines"')
        | {'ratchet_projection_lost_total{service="reward_computer",projection="baselines"}': "0+0x60"},
        6,
        25,
        "reward_computer keeps baselines without some of the events.",
        {"service": "reward_computer", "projection": "baselines"},
    ),
    Case(
        "BrokerRestored",
        event("ratchet_stream_rewound_total", 'stream="RL_TURNS"'),
        6,
        25,
        "RL_TURNS was made anew, or came back as an older copy.",
        TURNS,
    ),
    Case(
        "StreamsMadeAgain",
        event("ratchet_streams_made_again_total", 'stream="RL_TURNS"'),
        6,
        25,
        "RL_TURNS was gone from the broker and was made again, empty.",
        TURNS,
    ),
    Case(
        "ConsumerStandsStill",
        gauge("ratchet_consumer_oldest_unsettled_seconds", 'consumer="turns"', 301),
        4,
        15,
        "The oldest message of turns that is not settled is 301 s old.",
        {"consumer": "turns"},
        2,
    ),
    Case(
        "StreamFills",
        gauge("ratchet_stream_fill_ratio", 'stream="RL_TURNS"', 0.9),
        4,
        15,
        "RL_TURNS is nearly full: producers will have to spool.",
        TURNS,
        2,
    ),
    Case(
        "AnalystStandsStill",
        {"ratchet_analyst_looked_timestamp_seconds": "60+0x69 4200+0x20"},
        62,
        75,
        "No analyst has looked at all roles for an hour.",
        {},
        59,
    ),
    Case("GatewaySlow", SLOW, 15, 35, "One in a hundred calls of support takes more than a minute.", SUPPORT, 4),
    Case(
        "SpendHigh",
        {'ratchet_gateway_cost_usd_total{policy="support@1",key="k"}': "0+0x4 150+0x1500"},
        20,
        1460,
        "Calls of models cost 150 US dollars within a day.",
        {},
        4,
    ),
)


def expected(case: Case) -> list[dict[str, Any]]:
    """The one alert of a case, with all labels and annotations."""
    rule = next(rule for rule in RULES if rule["alert"] == case.rule)
    annotations = {"summary": case.summary, "runbook": rule["annotations"]["runbook"]}
    return [{"exp_labels": {**case.labels, **rule["labels"]}, "exp_annotations": annotations}]


def written(case: Case) -> dict[str, Any]:
    """The case as promtool reads it."""
    moments = ((case.before, []), (case.fires, expected(case)), (case.over, []))
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": case.rule, "exp_alerts": alerts} for minute, alerts in moments
        ],
    }


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == {rule["alert"] for rule in RULES}


@WITH_PROMETHEUS
def test_every_rule_fires_once_and_is_over_when_its_cause_is(tmp_path: Path) -> None:
    file = tmp_path / "rules_test.yml"
    tests = {"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": [written(case) for case in CASES]}
    file.write_text(yaml.safe_dump(tests))
    ran = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
