"""What a client knows of who has opted out: from its own agent, from the broker, and while that is away."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ratchet.client.opt_outs import FRESH_S, OptOuts
from ratchet.core.contract import Feedback, OptOut, Trajectory
from ratchet.core.contract.erasure import AGENT, SESSION, USER
from ratchet.core.rules.opt_outs import key_of
from ratchet.core.rules.texts import user_ref
from tests.support.messages import AT, trajectory

KEY = "key of users"
MIA = user_ref(KEY, "mia") or ""


def opt_out(kind: str, ref: str, *, is_over: bool = False) -> OptOut:
    return OptOut(opt_out_id=str(uuid.uuid4()), kind=kind, ref=ref, at=AT, role="support", is_over=is_over)


def of_mia() -> Trajectory:
    """A trajectory of hers: once one is dropped, it stays so."""
    return trajectory(str(uuid.uuid4()), user_ref=MIA)


def rated(trajectory_id: str, rater: str | None = None) -> Feedback:
    return Feedback(
        feedback_id=str(uuid.uuid4()), trajectory_id=trajectory_id, kind="thumbs", at=AT, role="support", rater=rater
    )


@dataclass
class Broker:
    """A connection on a loop of its own that answers which keys are there."""

    kept: set[str] = field(default_factory=set[str])
    is_connected: bool = True
    asked: int = 0
    now_s: float = 100.0
    api: str = "$JS.API"

    @property
    def nc(self) -> Any:
        return self

    async def request(self, subject: str, _: bytes = b"", **options: object) -> Any:
        self.asked += 1
        key = subject.partition("$KV.opt_outs.")[2]
        return SimpleNamespace(headers={"Nats-Sequence": "1"} if key in self.kept else {"Status": "404"})

    @contextmanager
    def known(self) -> Iterator[OptOuts]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        bus: Any = self
        try:
            yield OptOuts(KEY, lambda: bus, lambda: loop, lambda: self.now_s)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def test_own_agents_word_counts_at_once_and_without_a_broker() -> None:
    known = OptOuts(KEY, lambda: None, lambda: None)
    assert not known.covers(of_mia())
    known.note(opt_out(USER, MIA))
    dropped = of_mia()
    assert [known.covers(message) for message in (dropped, trajectory("two", user_ref=MIA[:-1]))] == [True, False]
    known.note(opt_out(USER, MIA, is_over=True))
    assert [known.covers(message) for message in (dropped, of_mia())] == [True, False]


def test_session_and_agent_differ_from_a_user_of_that_name() -> None:
    known, message = OptOuts(KEY, lambda: None, lambda: None), trajectory("one")
    known.note(opt_out(SESSION, message.agent_id))
    known.note(opt_out(AGENT, message.session_id))
    known.note(opt_out(USER, message.session_id))
    assert not known.covers(message)
    known.note(opt_out(SESSION, message.session_id))
    assert known.covers(message)


def test_feedback_is_dropped_of_a_dropped_trajectory_and_of_its_rater() -> None:
    known, message, other = OptOuts(KEY, lambda: None, lambda: None), trajectory("one", user_ref=MIA), trajectory("two")
    known.note(opt_out(USER, MIA))
    assert known.covers(message)
    assert known.covers(rated(message.trajectory_id))
    assert known.covers(rated(other.trajectory_id, rater="mia"))
    assert not known.covers(rated(other.trajectory_id, rater="ana"))
    assert not known.covers(other)


def test_answer_of_the_broker_counts_for_five_seconds_and_while_it_is_away() -> None:
    broker = Broker({key_of(opt_out(USER, MIA))})
    with broker.known() as known:
        assert known.covers(of_mia())
        first = broker.asked
        broker.now_s += FRESH_S - 1
        assert known.covers(trajectory("one", user_ref=MIA, session_id="s"))
        assert broker.asked == first + 2  # of the session, which is another one
        broker.kept.clear()
        broker.now_s += FRESH_S
        broker.is_connected = False
        assert known.covers(of_mia())
        broker.is_connected = True
        broker.now_s += FRESH_S
        assert not known.covers(of_mia())


def test_own_agents_word_stands_until_the_broker_agrees() -> None:
    broker = Broker()
    with broker.known() as known:
        known.note(opt_out(USER, MIA))
        assert known.covers(of_mia())
        broker.kept.add(key_of(opt_out(USER, MIA)))
        broker.now_s += FRESH_S
        assert known.covers(of_mia())
        broker.kept.clear()
        broker.now_s += FRESH_S
        assert not known.covers(of_mia())
