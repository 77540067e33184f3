"""A rule of Prometheus fires, and its alert reaches people: by a real Prometheus, Alertmanager and notifier."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ratchet.bus.testing import eventually
from ratchet.core.service.asgi import Request, Response
from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.ports import LOOPBACK
from tests.support.prometheus import WITH_PROMETHEUS, running_alertmanager, running_prometheus
from tests.support.receivers import receiving
from tests.support.running import connected, http_client, listening
from tests.support.servers import Broker
from tests.support.service_process import service_process

pytestmark = [pytest.mark.slow, WITH_PROMETHEUS]

KEY = "a-key-of-twenty-four-letters"


@dataclass
class Exporter:
    """The metrics of every service, by name and labels."""

    values: dict[str, float] = field(default_factory=dict[str, float])

    async def metrics(self, _: Request) -> Response:
        lines = "".join(f"{name} {value}\n" for name, value in self.values.items())
        return Response(200, lines.encode(), [(b"content-type", b"text/plain; version=0.0.4")])


@pytest.fixture
def shared(nats: Broker, tmp_path: Path) -> SharedSettings:
    return SharedSettings(nats_url=nats.url, data_dir=tmp_path / "data")


async def posts(port: int) -> float:
    """How often Alertmanager has posted to the notifier."""
    async with http_client(trust_env=False) as client:
        text = (await client.get(f"http://{LOOPBACK}:{port}/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    posted = [sample for sample in samples if sample.name == "alertmanager_notifications_total"]
    return sum(sample.value for sample in posted if sample.labels["integration"] == "webhook")


async def test_an_alert_of_a_rule_reaches_a_receiver_once_and_so_does_its_end(
    shared: SharedSettings, tmp_path: Path
) -> None:
    exporter = Exporter({"ratchet_analyst_looked_timestamp_seconds": 1.0})
    exporter.values['ratchet_check_failing{check="collection"}'] = 1.0  # a service raises that itself
    async with (
        connected(shared),
        receiving() as receiver,
        listening(lambda _method, _path: exporter.metrics) as url,
    ):
        settings: dict[str, Any] = {
            "RATCHET_NOTIFIER_RECEIVERS": json.dumps([receiver.settings()]),
            "RATCHET_NOTIFIER_ALERTMANAGER_KEY": KEY,
        }

        async def last() -> tuple[str, str] | None:
            state, key = receiver.events[-1] if receiver.events else ("", "")
            return (state, key.split(":")[1]) if key.startswith("prometheus:") else None

        with (
            service_process("notifier", shared, tmp_path, **settings) as notifier,
            running_alertmanager(tmp_path / "alertmanager", notifier.program.health_port or 0, KEY) as port,
            running_prometheus(tmp_path / "prometheus", {"*": int(url.rpartition(":")[2])}, port) as prometheus,
        ):
            assert await eventually(last) == ("firing", "AnalystStandsStill")
            before = await posts(port)

            async def is_posted_again() -> bool:
                return await posts(port) >= before + 3

            await eventually(is_posted_again)
            firing = {alert["labels"]["alertname"] for alert in await prometheus.alerts()}
            assert firing >= {"AnalystStandsStill", "CollectionErrors"}
            exporter.values["ratchet_analyst_looked_timestamp_seconds"] = time.time()

            async def is_over() -> bool:
                return await last() == ("resolved", "AnalystStandsStill")

            await eventually(is_over)
        assert [state for state, _ in receiver.events] == ["firing", "resolved"]
