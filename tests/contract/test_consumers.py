"""The consumers and projections of `topics.json` are those that the services really open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from nats.aio.client import Client as Nats

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Subscription
from ratchet.canary_deployer import app as deployer
from ratchet.reward_computer import app as reward
from ratchet.reward_computer.settings import Settings as RewardSettings
from ratchet.rl_coordinator import app as coordinator
from ratchet.stores.warehouse import Warehouse
from ratchet.trainer_worker import app as trainer
from ratchet.trainer_worker.settings import Settings as TrainerSettings
from ratchet.trajectory_collector import app as collector
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.handlers import Collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.contract_files import CONTRACTS, ROOT

DECLARED: Any = json.loads((ROOT / "topics.json").read_text())
POOL = TrainerSettings().pool
NOTHING: Any = None
"""What a handler would need to run, and does not need to be subscribed."""


def bus() -> Bus:
    """A bus that never connects: enough to compose a service."""
    return Bus(Nats(), name="test", contracts=CONTRACTS, replicas=1)


def of_the_collector() -> Sequence[Subscription]:
    facts = Facts(Warehouse(NOTHING, "none"))
    made = {
        stream: Collector(facts, NOTHING, NOTHING, collector._durable(stream), utc_now, timedelta(minutes=1))
        for stream in collector.STREAMS
    }
    return [collector._consumer(bus(), one, stream, CollectorSettings())._subscription for stream, one in made.items()]


def of_the_reward_computer() -> Sequence[Subscription]:
    parts = ("spec", "facts", "histories", "windows", "windows_from", "patience")
    computer = reward.RewardComputer(now=utc_now, **dict.fromkeys(parts, NOTHING))
    return reward._subscriptions(computer, RewardSettings())


def of_the_coordinator() -> Sequence[Subscription]:
    handlers = coordinator.Coordinator(NOTHING, NOTHING, lambda _: 0, utc_now)
    return [coordinator._consumer(bus(), handlers)._subscription]


def of_the_trainer() -> Sequence[Subscription]:
    handlers = trainer.Dispatches(NOTHING, NOTHING, "worker")
    return [trainer._consumer(bus(), TrainerSettings(), handlers)._subscription]


def of_the_deployer() -> Sequence[Subscription]:
    handlers = deployer.Handlers(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, utc_now)
    return [deployer._subscription(handlers)]


SERVICES = {
    "trajectory_collector": of_the_collector,
    "reward_computer": of_the_reward_computer,
    "rl_coordinator": of_the_coordinator,
    "trainer_worker": of_the_trainer,
    "canary_deployer": of_the_deployer,
}


def declared(service: str) -> dict[str, Any]:
    """The durable consumers of a service by name, the pool filled in."""
    entries = {name: spec for name, spec in DECLARED["consumers"].items() if spec["service"] == service}
    return json.loads(json.dumps(entries).replace("<pool>", POOL))


def as_declared(service: str, subscription: Subscription) -> Any:
    """A subscription in the words of `topics.json`."""
    said = {
        "service": service,
        "stream": subscription.stream,
        "topics": list(subscription.handlers),
        "ack_wait_s": subscription.ack_wait_s,
        "max_deliveries": subscription.max_deliveries,
    }
    return said | ({"subjects": list(subscription.subjects)} if subscription.subjects else {})


@pytest.mark.parametrize("service", SERVICES)
def test_durable_consumers_are_declared(service: str):
    opened = {one.durable: as_declared(service, one) for one in SERVICES[service]()}
    assert opened == {name: {**spec} for name, spec in declared(service).items()}


def test_no_other_service_is_said_to_have_a_durable_consumer():
    assert {spec["service"] for spec in DECLARED["consumers"].values()} == set(SERVICES)


def test_projections_are_declared():
    folds = {
        "reward_computer": [reward.TURN_HISTORY, reward.SCORE_WINDOWS],
        "rl_coordinator": [coordinator._counting(), coordinator._counting_preferences()],
    }
    opened = {
        fold.name: {"service": service, "stream": fold.stream, "topics": list(fold.topics), "bucket": fold.bucket}
        for service, parts in folds.items()
        for fold in parts
    }
    assert opened == DECLARED["projections"]


def test_whoever_reads_a_topic_is_one_of_its_consumers():
    readers = [*DECLARED["consumers"].values(), *DECLARED["projections"].values()]
    strangers = [
        (spec["service"], topic)
        for spec in readers
        for topic in spec["topics"]
        if spec["service"] not in CONTRACTS.topics[topic].consumers or CONTRACTS.topics[topic].stream != spec["stream"]
    ]
    assert strangers == []
