"""What processes learn from each other's notes, whatever order, clock and content these have."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from ratchet.core.contract import GatewayNotes, JsonObject, encode, named_id
from ratchet.core.contract.gateway_notes import ArmNote, CallNote
from ratchet.core.contract.state import ServedPolicy
from ratchet.core.rules.arms import STABLE, Assignment
from ratchet.gateway.domain.identity import Names
from ratchet.gateway.domain.past_calls import REMEMBERED_CALLS, Conversation, PastCall
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.routing import ARM_BYTES, PROCESSES, Arm, Arms
from ratchet.gateway.turn_order import TurnOrder
from tests.support.contract_files import CONTRACTS
from tests.support.peer_process import Processes

RUN, TURN = named_id("run"), named_id("turn")
USER: JsonObject = {"role": "user", "content": "hi"}
HELLO: JsonObject = {"role": "assistant", "content": "hello"}
MORE: JsonObject = {"role": "user", "content": "more"}
POLICY = ServedPolicy(version=1, name="support@1-11111111", digest="1" * 64)
OTHER = ServedPolicy(version=2, name="support@2-22222222", digest="2" * 64)


def test_a_conversation_that_one_process_answered_goes_on_at_another() -> None:
    first, second = Processes(2).each
    call = first.ask([USER])
    first.answer(call, [USER], HELLO)
    second.hear(first)
    again = second.ask([USER, HELLO, MORE])
    assert (again.by, again.trajectory_id, again.is_certain) == ("prefix", call.trajectory_id, False)


def test_answer_of_two_processes_belongs_to_neither_run_after_their_notes() -> None:
    first, second = Processes(2).each
    for process in (first, second):
        process.answer(process.ask([USER]), [USER], HELLO)
    assert first.ask([USER, HELLO, MORE]).by == "prefix"
    first.hear(second)
    second.hear(first)
    assert [process.ask([USER, HELLO, MORE]).by for process in (first, second)] == ["new", "new"]


def test_marks_of_one_key_mean_nothing_for_another() -> None:
    first, second = Processes(2).each
    first.answer(first.ask([USER], scope="a"), [USER], HELLO)
    second.hear(first)
    assert second.ask([USER, HELLO, MORE], scope="b").by == "new"


def test_first_and_named_calls_are_certain_and_shared_ones_are_not() -> None:
    (process,) = Processes(1).each
    assert process.ask([USER]).is_certain
    assert process.ask([USER, HELLO, MORE], names=Names(header="run")).is_certain
    assert not process.ask([USER, HELLO, MORE]).is_certain
    assert not process.ask([MORE], names=Names(retries="1")).is_certain
    assert not process.ask([{**USER, "content": "go on"}], previous_response_id="resp_1").is_certain


def test_an_end_at_one_process_ends_the_trajectory_at_all() -> None:
    first, second = Processes(2).each
    call = first.ask([USER])
    first.answer(call, [USER], HELLO)
    first.identity.ended(call.trajectory_id)
    second.hear(first)
    assert second.ask([USER, HELLO, MORE]).by == "new"


def test_note_of_a_process_with_a_wrong_clock_is_as_fresh_as_its_arrival() -> None:
    first, second = Processes(2, skew_s=600.0).each
    call = first.ask([USER])
    first.answer(call, [USER], HELLO)
    second.hear(first)
    assert second.ask([USER, HELLO, MORE]).trajectory_id == call.trajectory_id


@pytest.mark.parametrize("seed", range(20))
def test_notes_may_come_twice_and_in_any_order(seed: int) -> None:
    chance = random.Random(seed)
    arm = Arm(RUN, "support")
    notes = [ArmNote(trajectory_id=RUN, role="support", turns=turns) for turns in (1, 2, 3)]
    notes.append(ArmNote(trajectory_id=RUN, role="support", turns=3, ended=True, has_outcome=True))
    for process in ("a", "b"):
        for note in chance.sample(notes * 2, k=8):
            arm.learn(process, note)
    assert (arm.turns, arm.ended, arm.has_outcome) == (6, True, True)


def test_policy_that_two_processes_chose_differently_has_changed_in_flight() -> None:
    arm = Arm(RUN, "support", assignment=Assignment(STABLE, 0.0, POLICY))
    arm.learn("a", ArmNote(trajectory_id=RUN, role="support", turns=1, policy=POLICY, arm=STABLE))
    assert not arm.mixed
    arm.learn("a", ArmNote(trajectory_id=RUN, role="support", turns=1, policy=OTHER, arm=STABLE))
    assert (arm.mixed, arm.assignment) == (True, Assignment(STABLE, 0.0, POLICY))


def test_policy_that_changed_in_flight_elsewhere_is_one_that_answers_here() -> None:
    arm = Arm(RUN, "support", assignment=Assignment(STABLE, 0.0, POLICY))
    arm.learn("a", ArmNote(trajectory_id=RUN, role="support", turns=1, policy=OTHER, arm=STABLE, mixed=True))
    assert (arm.mixed, arm.assignment) == (True, Assignment(STABLE, 0.0, OTHER))


def test_a_later_process_knows_which_agents_have_fetched_their_bundle() -> None:
    first, later = Processes(2).each
    arm = first.arms.open(RUN, "support")
    arm.fetched = True
    first.notes.changed(arm)
    later.hear(first)
    assert later.arms.open(RUN, "support").fetched


def test_what_others_count_is_bounded() -> None:
    arms = Arms(4 * ARM_BYTES)
    for number in range(2 * PROCESSES):
        arms.learn(f"process {number}", ArmNote(trajectory_id=RUN, role="support", turns=1))
    (arm,) = arms.of_trajectory(RUN)
    assert arm.turns == PROCESSES
    arms.open(named_id("next"), "support")
    assert len(arms) == 1


def test_call_recorded_elsewhere_is_continued_as_if_it_were_recorded_here() -> None:
    conversation = Conversation((RUN, "support"))
    note = CallNote(
        trajectory_id=RUN,
        role="support",
        turn_id=TURN,
        number=1,
        index=0,
        attempt=2,
        messages=2,
        digest="0" * 32,
        call_ids=["call_x"],
        ids=7,
        ids_digest="1" * 64,
    )
    for _ in range(REMEMBERED_CALLS + 1):
        conversation.learn(note)
    parent = conversation.parent_of([b"", b"", bytes(16), b""])
    assert isinstance(parent, PastCall)
    assert (parent.turn_id, parent.index, parent.ids_elsewhere) == (TURN, 0, (7, "1" * 64))
    assert conversation.next_attempt(None, 0) == 3
    assert len(conversation.calls) <= REMEMBERED_CALLS


async def test_a_record_waits_for_those_of_earlier_calls_elsewhere() -> None:
    arms, order, done = Arms(1_000_000), TurnOrder(), list[str]()
    arms.learn("a", ArmNote(trajectory_id=RUN, role="support", turns=2))
    (arm,) = arms.of_trajectory(RUN)
    for name in ("first", "second"):
        order.do(arm, lambda name=name: done.append(name))
    for number in (1, 1, 2):
        assert done == []
        arms.learn_recorded("a", RUN, "support", number)
        order.look(arm)
    assert done == ["first", "second"]
    order.do(arm, lambda: done.append("third"))
    assert done == ["first", "second", "third"]
    assert len(order) == 0


async def test_calls_at_two_processes_do_not_wait_for_each_other() -> None:
    arms, order, done = Arms(1_000_000), TurnOrder(), list[str]()
    arms.learn("a", ArmNote(trajectory_id=RUN, role="support", turns=1))
    (arm,) = arms.of_trajectory(RUN)
    order.do(arm, lambda: done.append("here"))
    arms.learn("b", ArmNote(trajectory_id=RUN, role="support", turns=1))
    order.do(arm, lambda: done.append("after b"))
    arms.learn_recorded("a", RUN, "support", 1)
    order.look(arm)
    assert done == ["here"]
    arms.learn_recorded("b", RUN, "support", 1)
    order.look(arm)
    assert done == ["here", "after b"]


async def test_a_stop_waits_for_no_other_process() -> None:
    arm, order, done = Arm(RUN, "support", turns_elsewhere={"a": 1}), TurnOrder(), list[str]()
    order.do(arm, lambda: done.append("done"))
    order.finish()
    assert done == ["done"]


NOTE: dict[str, Any] = {"trajectory_id": RUN, "turn_id": TURN, "marks": ["p" + "0" * 32]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff{",
        b"[" * 100_000,
        b'{"process": "gateway"}',
        msgspec.json.encode({"process": "0" * 32, "answers": [{**NOTE, "trajectory_id": "x\r\nset-cookie: a"}]}),
        msgspec.json.encode({"process": "0" * 32, "answers": [{**NOTE, "marks": ["p" * 10_000]}]}),
        msgspec.json.encode({"process": "0" * 32, "arms": [{"trajectory_id": RUN, "role": "a", "turns": 2**40}]}),
        msgspec.json.encode({"process": "0" * 32, "arms": [{"trajectory_id": RUN, "role": "a", "arm": "a\r\nb"}]}),
    ],
)  # fmt: skip
def test_what_is_no_note_means_nothing(body: bytes) -> None:
    (process,) = Processes(1).each
    process.take(body)
    assert (len(process.identity.marks), len(process.arms)) == (0, 0)


def test_members_of_a_later_version_are_left_out() -> None:
    (process,) = Processes(1).each
    body = msgspec.json.encode({"process": "0" * 32, "later": {"a": 1}, "answers": [{**NOTE, "later": True}]})
    process.take(body)
    assert len(process.identity.marks) == 1


def test_all_notes_that_a_process_sends_keep_their_contract() -> None:
    (process,) = Processes(1).each
    call = process.ask([USER])
    process.answer(call, [USER], HELLO)
    failing = process.ask([MORE])
    process.identity.failed(failing)
    process.ask([MORE], names=Names(retries="1"))
    process.identity.ended(call.trajectory_id)
    arm = process.arms.open(call.trajectory_id, "support")
    arm.assignment = Assignment(STABLE, 0.5, ServedPolicy(version=0, name="provider:model", digest=""))
    process.notes.changed(arm)
    process.notes.used("key", tokens=3)
    sent = process.sent()
    assert [len(kind) for kind in (sent.answers, sent.failures, sent.repetitions, sent.ends)] == [1, 1, 1, 1]
    assert CONTRACTS.check_strict_json(GatewayNotes.TOPIC, encode(sent)) == sent


def test_notes_that_nothing_sends_are_not_kept() -> None:
    notes = PeerUpdates()
    notes.ended(RUN)
    assert notes.take() is None
