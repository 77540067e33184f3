"""What Alertmanager posts, as alerts: with a key, each once, and over when it is resolved."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import httpx
import pytest

from ratchet.core.contract import Alert
from ratchet.core.service.alerts import Alerts
from ratchet.core.service.asgi import RECORD_BYTES
from ratchet.notifier.alertmanager import alertmanager_app
from ratchet.notifier.watch import Watch
from tests.support.fake_bus import FakeBus, alerts_on, fake_bus
from tests.support.messages import AT

KEY = "a-key-of-twenty-four-letters"


def posted(status: str = "firing", fingerprint: str = "0123456789abcdef", **labels: str) -> dict[str, Any]:
    """A post of one alert, with members that nothing reads."""
    alert = {
        "status": status,
        "labels": {"alertname": "GatewaySlow", "severity": "critical", "role": "support", **labels},
        "annotations": {"summary": "calls are slow"},
        "startsAt": "2026-03-02T15:00:00Z",
        "fingerprint": fingerprint,
    }
    return {"version": "4", "status": status, "alerts": [alert]}


async def post(alerts: Alerts, *bodies: object, key: str = KEY) -> httpx.Response:
    """The answer to the last of these posts."""
    transport = httpx.ASGITransport(alertmanager_app(KEY, alerts))
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://notifier", headers=headers) as client:
        answers = [await client.post("/alertmanager", json=body) for body in bodies]
    return answers[-1]


async def resumed(bus: FakeBus) -> Alerts:
    alerts = alerts_on(bus, "notifier")
    await alerts.publish_pending()
    return alerts


async def test_an_alert_that_is_posted_again_is_one_alert() -> None:
    bus = fake_bus()
    answer = await post(await resumed(bus), posted(), posted())
    assert answer.status_code == 200
    (alert,) = bus.published(Alert)
    assert (alert.key, alert.severity, alert.role) == (
        "prometheus:GatewaySlow:0123456789abcdef",
        "critical",
        "support",
    )
    assert alert.summary == "calls are slow"


async def test_an_alert_of_other_labels_is_another_alert() -> None:
    bus = fake_bus()
    await post(await resumed(bus), posted(), posted(fingerprint="fedcba9876543210", role="billing"))
    assert [alert.role for alert in bus.published(Alert)] == ["support", "billing"]


async def test_an_alert_that_is_resolved_is_over() -> None:
    bus = fake_bus()
    await post(await resumed(bus), posted(), posted("resolved"), posted("resolved"))
    assert [alert.cleared for alert in bus.published(Alert)] == [False, True]


async def test_labels_that_are_no_severity_and_no_role_are_left_out() -> None:
    bus = fake_bus()
    await post(await resumed(bus), posted(severity="page", role="No Role!"))
    (alert,) = bus.published(Alert)
    assert (alert.severity, alert.role) == ("warning", None)


async def test_a_look_at_the_services_does_not_end_a_posted_alert() -> None:
    bus = fake_bus()
    alerts = await resumed(bus)
    await post(alerts, posted())

    async def fine() -> list[Any]:
        return []

    await Watch(fine, alerts).look()
    assert [alert.cleared for alert in bus.published(Alert)] == [False]


async def test_a_post_before_it_is_known_what_holds_is_to_come_again() -> None:
    bus = fake_bus()
    answer = await post(alerts_on(bus, "notifier"), posted("resolved"))
    assert (answer.status_code, bus.published(Alert)) == (503, [])


async def test_of_two_notifiers_either_may_hear_of_the_end_and_of_the_next() -> None:
    seconds = itertools.count()
    bus = fake_bus(lambda: AT + timedelta(seconds=next(seconds)))
    one, other = await resumed(bus), await resumed(bus)
    await post(one, posted())
    await post(other, posted(), posted("resolved"))
    await post(one, posted("resolved"), posted())
    assert [alert.cleared for alert in bus.published(Alert)] == [False, True, False]


async def test_a_fingerprint_with_a_line_end_is_none() -> None:
    bus = fake_bus()
    answer = await post(await resumed(bus), posted(fingerprint="0123456789abcdef\n"))
    assert (answer.status_code, bus.published(Alert)) == (400, [])


@pytest.mark.parametrize(
    ("key", "body", "status"),
    [
        ("another-key-of-some-letters", posted(), 401),
        ("", posted(), 401),
        (KEY, {"alerts": [{"status": "firing"}]}, 400),
        (KEY, posted(fingerprint="../../etc"), 400),
        (KEY, [], 400),
        (KEY, "x" * RECORD_BYTES, 413),
    ],
    ids=["wrong key", "no key", "no labels", "no fingerprint", "no object", "too large"],
)
async def test_a_post_that_is_wrong_raises_nothing(key: str, body: object, status: int) -> None:
    bus = fake_bus()
    answer = await post(await resumed(bus), body, key=key)
    assert (answer.status_code, bus.published(Alert)) == (status, [])
