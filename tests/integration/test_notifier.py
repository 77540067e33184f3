"""The notifier on a real broker, in front of receivers on loopback ports."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Alert, named_id
from ratchet.core.contract.notifications import NOTIFICATIONS, Receiver as State
from ratchet.core.service.asgi import Response
from ratchet.core.service.runtime import App
from ratchet.core.service.settings import SharedSettings
from ratchet.notifier import delivery
from ratchet.notifier.app import Timing, build
from ratchet.notifier.settings import Settings
from ratchet.notifier.transports import by_apprise
from tests.support.receivers import receiving
from tests.support.running import connected, running_app
from tests.support.servers import Broker

FAST = Timing(look_s=0.2, spacing=timedelta(), first_pause=timedelta(milliseconds=10))


@pytest.fixture
def shared(nats: Broker, tmp_path: Path) -> SharedSettings:
    return SharedSettings(nats_url=nats.url, data_dir=tmp_path / "data")


@asynccontextmanager
async def notifier(
    shared: SharedSettings, *receivers: dict[str, object], timing: Timing = FAST, **settings: object
) -> AsyncIterator[App]:
    made = Settings.model_validate({"shared": shared, "receivers": json.loads(json.dumps(receivers)), **settings})
    async with running_app(build(made, timing)) as app:
        yield app


async def raised(bus: Bus, key: str, number: int = 1, *, cleared: bool = False, severity: str = "critical") -> None:
    alert = Alert(
        alert_id=named_id(key, number, cleared),
        key=key,
        severity="info" if cleared else severity,
        summary=f"{key} is wrong",
        source="trajectory_collector",
        at=bus.now(),
        cleared=cleared,
    )
    await bus.publish(alert)


async def state_of(bus: Bus, name: str = "team") -> State:
    entry = await Bucket(bus, NOTIFICATIONS, State).get(name)
    assert entry is not None
    return entry.value


async def test_an_alert_and_its_end_reach_a_webhook_signed_and_once(shared: SharedSettings) -> None:
    async with connected(shared) as bus, receiving() as receiver, notifier(shared, receiver.settings()):
        await raised(bus, "disk")
        await eventually(lambda: receiver.has(("firing", "disk")))
        await raised(bus, "disk", 2)
        await raised(bus, "disk", 3, cleared=True)
        await eventually(lambda: receiver.has(("resolved", "disk")))
        assert receiver.events == [("firing", "disk"), ("resolved", "disk")]
        assert receiver.notifications[0].alerts[0].summary == "disk is wrong"
        sent = [(one.title, one.error) for one in (await state_of(bus)).sent]
        assert sent[0] == ("critical: disk is wrong", None)


async def test_text_reaches_a_service_of_apprise(shared: SharedSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_apprise, "ATTEMPT_S", 120.0)  # apprise takes long to import on a busy machine
    async with connected(shared) as bus, receiving() as receiver:
        url = receiver.url.replace("http://", "json://")
        async with notifier(shared, {"name": "team", "url": f"{url}/planted-secret"}):
            await raised(bus, "<@everyone> disk")

            async def has_come() -> list[str]:
                return receiver.texts

            (text,) = await eventually(has_come)
        assert text.startswith("failure Ratchet: critical: ‹＠everyone› disk is wrong\n")
        state = await state_of(bus)
        assert (state.kind, state.error) == ("json", None)


async def hangs() -> Response:
    await asyncio.Event().wait()
    raise AssertionError


async def fails() -> Response:
    return Response(500, b"no planted-secret")


async def redirects() -> Response:
    return Response(302, b"", [(b"location", b"/hook")])


async def floods() -> Response:
    return Response(503, b"x" * 10_000_000)


@pytest.mark.parametrize("answer", [hangs, fails, redirects, floods])
async def test_a_receiver_that_fails_keeps_no_other_waiting(answer: object, shared: SharedSettings) -> None:
    async with connected(shared) as bus, receiving() as bad, receiving() as good:
        bad.answer = answer  # pyright: ignore[reportAttributeAccessIssue]
        async with notifier(shared, bad.settings("bad"), good.settings("good")):
            for number in range(3):
                await raised(bus, f"k{number}")
            await eventually(lambda: good.has(("firing", "k0"), ("firing", "k1"), ("firing", "k2")))

            async def was_tried() -> bool:
                return bool(bad.requests)

            await eventually(was_tried)
            waiting = await state_of(bus, "bad")
        assert waiting.outgoing is not None
        assert (waiting.outgoing.attempts > 0, waiting.known, waiting.sent) == (True, {}, [])


async def test_a_failing_receiver_is_an_alert_for_others_until_it_works(
    shared: SharedSettings,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.WARNING)  # as in a service (`configure_logs`)
    async with connected(shared) as bus, receiving() as bad, receiving() as good:
        bad.answer = fails
        async with notifier(shared, bad.settings("bad"), good.settings("good")):
            await raised(bus, "disk")
            await eventually(lambda: good.has(("firing", "receiver:bad")))
            assert (await state_of(bus, "bad")).failures >= delivery.FAILING
            assert "answered 500" in good.notifications[-1].alerts[0].summary
            bad.answer = None
            await eventually(lambda: good.has(("resolved", "receiver:bad")))
            await eventually(lambda: bad.has(("firing", "disk")))
        stored = str(await state_of(bus, "bad")) + str(await state_of(bus, "good"))
    output = capsys.readouterr()
    assert "planted-secret" not in caplog.text + output.out + output.err + stored
    assert ("firing", "receiver:bad") not in bad.events


async def test_two_notifiers_send_everything_once(shared: SharedSettings, tmp_path: Path) -> None:
    second = shared.model_copy(update={"data_dir": tmp_path / "second"})
    async with connected(shared) as bus, receiving() as receiver:
        async with notifier(shared, receiver.settings()), notifier(second, receiver.settings()):
            for number in range(20):
                await raised(bus, f"k{number}")
                await raised(bus, f"k{number}", 2, cleared=number % 2 == 0)
            await raised(bus, "last")
            await eventually(lambda: receiver.has(("firing", "last")))
        firing = [key for state, key in receiver.events if state == "firing"]
        assert len(firing) == len({*firing})
        assert len(receiver.ids) == len({*receiver.ids})


async def test_a_notifier_goes_on_where_the_one_before_it_stood(shared: SharedSettings) -> None:
    async with connected(shared) as bus, receiving() as receiver:
        async with notifier(shared, receiver.settings()):
            await raised(bus, "disk")
            await eventually(lambda: receiver.has(("firing", "disk")))

            async def is_stored() -> bool:
                return "disk" in (await state_of(bus)).known

            await eventually(is_stored)
        await raised(bus, "disk", 2, cleared=True)
        await raised(bus, "engine")
        async with notifier(shared, receiver.settings()):
            await eventually(lambda: receiver.has(("resolved", "disk"), ("firing", "engine")))
        assert sorted(receiver.events) == [("firing", "disk"), ("firing", "engine"), ("resolved", "disk")]


@pytest.mark.parametrize("number", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_alerts_by_the_thousand_are_few_messages(number: int, shared: SharedSettings) -> None:
    async with connected(shared) as bus, receiving() as receiver, receiving() as bad:
        bad.answer = hangs
        slow = replace(FAST, spacing=timedelta(seconds=3))
        async with notifier(shared, receiver.settings(), bad.settings("bad"), timing=slow):
            for start in range(0, number, 2000):
                await asyncio.gather(*(raised(bus, f"k{start + place}") for place in range(2000)))

            async def is_counted() -> bool:
                return sum(len(sent.alerts) + sent.more for sent in receiver.notifications) >= number

            await eventually(is_counted)
            await raised(bus, "last")
            await eventually(lambda: receiver.has(("firing", "last")))

            async def is_settled() -> bool:
                state = await state_of(bus)
                return state.outgoing is None and "last" in state.known

            await eventually(is_settled)
        assert len(receiver.notifications) < 10 * number / 2000
        assert all(len(sent.alerts) <= 100 for sent in receiver.notifications)
        firing = [key for state, key in receiver.events if state == "firing"]
        assert len(firing) == len({*firing})
