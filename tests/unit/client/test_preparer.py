"""Between agent and outbox a message is redacted and checked, within bounds, and not on the agent's thread."""

from __future__ import annotations

import os
import threading
import time

import msgspec
import pytest

from ratchet.bus.clock import utc_now
from ratchet.bus.envelope import Record
from ratchet.bus.message import Message
from ratchet.bus.outbox import Outbox
from ratchet.bus.spool import NoSpool
from ratchet.bus.testing import eventually
from ratchet.client.opt_outs import OptOuts
from ratchet.client.preparer import Preparer
from ratchet.client.recording import Recording
from ratchet.client.settings import ClientSettings
from ratchet.client.trajectory import Agent
from ratchet.core.contract.trajectory import TaskContext
from ratchet.core.service.contracts import load_contracts
from tests.support.messages import trajectory

CONTRACTS = load_contracts()


def no_one_out() -> OptOuts:
    return OptOuts(None, lambda: None, lambda: None)


def made(limit: int = 100, limit_bytes: int = 1_000_000) -> tuple[Preparer, Outbox]:
    outbox = Outbox(CONTRACTS, "test", NoSpool())
    return Preparer(outbox, no_one_out(), limit, limit_bytes), outbox


async def test_secrets_are_removed_and_counted_before_a_message_reaches_outbox() -> None:
    preparer, outbox = made()
    preparer.start()
    task = TaskContext(task_id="t", instructions="mail mia@example.com with key sk-abcdefghijklmnopqrstuvwx1234")
    preparer.put(trajectory(task_context=task))
    await preparer.close(5)
    assert outbox.pending == 1
    assert sum(preparer.redactions.values()) >= 2
    assert preparer.redactions["email"] == 1


async def test_message_that_breaks_contract_is_counted_and_its_neighbours_go_on() -> None:
    preparer, outbox = made()
    preparer.start()
    for message in (trajectory("1"), trajectory("bad", trajectory_id="no uuid"), trajectory("2")):
        preparer.put(message)
    await preparer.close(5)
    assert (outbox.pending, preparer.invalid) == (2, 1)


async def test_what_cannot_be_redacted_is_not_passed_on() -> None:
    deep: dict[str, object] = {}
    for _ in range(300):
        deep = {"deeper": deep}
    preparer, outbox = made()
    preparer.start()
    preparer.put(msgspec.structs.replace(trajectory(), labels=deep))
    await preparer.close(5)
    assert (outbox.pending, preparer.invalid) == (0, 1)


async def test_messages_beyond_the_limit_are_counted_and_do_not_wait() -> None:
    preparer, outbox = made(limit=3)
    for n in range(5):
        preparer.put(trajectory(str(n)))
    assert (preparer.pending, preparer.overflowed) == (3, 2)
    preparer.start()
    await preparer.close(5)
    assert outbox.pending == 3


async def test_messages_beyond_the_limit_of_bytes_are_counted() -> None:
    preparer, outbox = made(limit_bytes=10_000)
    for n in range(5):
        preparer.put(trajectory(str(n), task_context=TaskContext(task_id=str(n), instructions="x" * 4_000)))
    assert (preparer.pending, preparer.overflowed) == (2, 3)
    preparer.start()
    await preparer.close(5)
    assert outbox.pending == 2


async def test_a_message_without_a_form_in_json_is_counted_as_invalid() -> None:
    preparer, outbox = made()
    preparer.start()
    preparer.put(trajectory(session_id="off \ud800 unicode"))
    await preparer.close(5)
    assert (outbox.pending, preparer.invalid) == (0, 1)


async def test_closing_ends_at_its_deadline_and_counts_the_rest() -> None:
    preparer, outbox = made()
    for n in range(3):
        preparer.put(trajectory(str(n)))
    assert not await preparer.wait(0)
    preparer.start()
    await preparer.close(0)
    assert (preparer.pending, outbox.pending + preparer.overflowed) == (0, 3)


async def test_preparer_counts_a_message_in_its_hands_once() -> None:
    preparer, outbox = made()
    preparer.start()
    preparer.put(trajectory("long", task_context=TaskContext(task_id="t", instructions="word " * 60_000)))
    await preparer.close(0)
    assert (preparer.pending, outbox.pending, preparer.overflowed) == (0, 0, 1)
    await eventually(lambda: ended("ratchet-preparer"))
    assert (outbox.pending, preparer.overflowed, preparer.invalid) == (0, 1, 0)


async def ended(name: str) -> bool:
    return name not in {thread.name for thread in threading.enumerate()}


def test_preparer_finishes_without_a_thread_of_its_own() -> None:
    preparer, outbox = made()
    for n in range(3):
        preparer.put(trajectory(str(n)))
    preparer.finish(5)
    preparer.put(trajectory("late"))
    assert (preparer.pending, outbox.pending, preparer.overflowed) == (0, 3, 1)


class Validating(Outbox):
    """Holds a lock of its own while it seals, as a library does that knows nothing of forks."""

    def __init__(self) -> None:
        super().__init__(CONTRACTS, "test", NoSpool())
        self.lock, self.began = threading.Lock(), threading.Event()

    def seal(self, message: Message) -> Record:
        with self.lock:
            self.began.set()
            time.sleep(0.3)  # the fork is tried meanwhile
            return super().seal(message)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process forks here")
def test_fork_waits_for_the_message_that_is_prepared() -> None:
    outbox = Validating()
    preparer = Preparer(outbox, no_one_out(), 100, 1_000_000)
    preparer.start()
    preparer.put(trajectory())
    outbox.began.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if outbox.lock.acquire(timeout=1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    preparer.finish(5)
    assert outbox.pending == 1


class Checking:
    """As `Validating`, for what a strict client asks of the contracts on its own thread."""

    def __init__(self) -> None:
        self.lock, self.began = threading.Lock(), threading.Event()

    def check_strict(self, message: Message) -> bytes:
        with self.lock:
            self.began.set()
            time.sleep(0.3)  # the fork is tried meanwhile
            return CONTRACTS.check_strict(message)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process forks here")
def test_fork_waits_for_the_message_that_a_strict_client_checks() -> None:
    contracts, kept = Checking(), list[Message]()
    agent = Agent(agent_id="a", role="support", session_id="s")
    recording = Recording(agent, ClientSettings(), contracts, kept.append, no_one_out(), strict=True, now=utc_now)  # pyright: ignore[reportArgumentType]
    other = threading.Thread(target=recording.submit, args=(trajectory(),))
    other.start()
    contracts.began.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if contracts.lock.acquire(timeout=1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    other.join()
    assert len(kept) == 1
