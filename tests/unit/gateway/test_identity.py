"""By what the gateway recognises the trajectory of a call, and what must not mislead it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract import JsonObject, named_id
from ratchet.core.contract.gateway_notes import AnswerNote
from ratchet.core.errors import BadRequest
from ratchet.core.rules.texts import NAME_CHARACTERS
from ratchet.core.service.settings import SharedSettings
from ratchet.gateway.domain.identity import (
    CLAIMS,
    SEARCHED,
    Asked,
    Claim,
    Claims,
    Identity,
    Names,
    Recognised,
    names_of,
    random_ids,
    subject_ref,
    trajectory_id_of,
)
from ratchet.gateway.settings import Settings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
UUID = "0199f3a2-01b8-7f6c-8a55-90d3e7b1c422"
TRACE_UUID = str(uuid.UUID(TRACE))
SERVICE = "s-0123456789abcd"
SECRETS: list[Any] = [("u", SERVICE), ("u", None), (None, SERVICE), (None, SERVICE), (None, None)]
"""A gateway's `user_key`, and its `service_key`."""
USER: JsonObject = {"role": "user", "content": "hi"}
HELLO: JsonObject = {"role": "assistant", "content": "hello"}
MORE: JsonObject = {"role": "user", "content": "more"}


def called(call_id: str, name: str = "f", arguments: str = '{"a": 1}') -> JsonObject:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str) -> JsonObject:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


class Gateway:
    """An identity with a clock to move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.made = 0
        self.identity = Identity(1_000_000, self.new_id, lambda: self.now)

    def new_id(self) -> str:
        self.made += 1
        return f"new-{self.made}"

    def ask(
        self,
        *messages: JsonObject,
        scope: str = "key",
        names: Names | None = None,
        body: bytes = b"",
        key: str = "",
        **members: Any,
    ) -> Recognised:
        asked = Asked(scope, names or Names(), members, body or repr(messages).encode(), lambda: messages, key)
        call = self.identity.look_up(asked)
        self.identity.begin(asked, call)
        return call

    def answer(
        self, call: Recognised, messages: Sequence[JsonObject], answer: JsonObject, turn: str = "turn"
    ) -> Recognised:
        self.identity.answered(call, turn, lambda: messages, answer)
        return call

    def complete(self, messages: Sequence[JsonObject], answer: JsonObject, **asked: Any) -> Recognised:
        return self.answer(self.ask(*messages, **asked), messages, answer)


@pytest.mark.parametrize(
    ("asked", "by", "name"),
    [
        ({"names": Names(header="run 7", path="p", run="r", traceparent=PARENT)}, "header", "run 7"),
        ({"names": Names(path="p", run="r", traceparent=PARENT)}, "path", "p"),
        ({"names": Names(run="r", traceparent=PARENT), "metadata": {"run_id": "m"}}, "run", "r"),
        ({"names": Names(traceparent=PARENT), "metadata": {"run_id": "m"}}, "trace", TRACE),
        ({"metadata": {"session_id": "s", "thread_id": "t"}, "conversation": "c"}, "metadata", "t"),
        ({"metadata": {"session_id": "s"}, "names": Names(session=UUID)}, "metadata", "s"),
        ({"names": Names(session=UUID), "prompt_cache_key": TRACE_UUID}, "session", UUID),
        ({"metadata": {"user_id": f'{{"device_id":"d","account_uuid":"","session_id":"{UUID}"}}'}}, "session", UUID),
        ({"metadata": {"user_id": f"user_0a1b_account_{TRACE_UUID}_session_{UUID}"}}, "session", UUID),
        ({"prompt_cache_key": f"codex-{UUID}", "conversation": "c"}, "prompt_cache_key", UUID),
        ({"conversation": {"id": "conv_1"}}, "conversation", "conv_1"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation", "conv_1"),
    ],
)  # fmt: skip
def test_the_first_name_that_a_request_has_decides(asked: dict[str, Any], by: str, name: str) -> None:
    call = Gateway().ask(USER, **asked)
    assert (call.by, call.trajectory_id) == (by, trajectory_id_of(name))


def test_a_session_is_named_by_a_uuid() -> None:
    headers = {b"session-id": "17", b"x-claude-code-session-id": UUID, b"session_id": TRACE_UUID}
    assert names_of(headers.get, None).session == UUID
    assert Gateway().ask(USER, names=Names(session="17")).by == "new"


@pytest.mark.parametrize(
    "members",
    [
        {"metadata": {"run_id": 7}},
        {"metadata": {"run_id": ""}},
        {"metadata": {"run_id": "a\nb"}},
        {"metadata": {"run_id": "x" * (NAME_CHARACTERS + 1)}},
        {"metadata": ["run_id"]},
        {"metadata": {"user_id": f"customer {UUID}"}},
        {"metadata": {"user_id": "user_0a1b_account__session_17"}},
        {"prompt_cache_key": "my-app-v1"},
        {"prompt_cache_key": None},
        {"conversation": {"id": None}},
        {"conversation": []},
        {"previous_response_id": "resp_of_another_gateway"},
        {"previous_response_id": {}},
    ],
)
def test_what_is_no_name_in_a_body_means_nothing(members: JsonObject) -> None:
    assert Gateway().ask(USER, **members).by == "new"


def test_uuid_is_the_id_and_any_other_name_has_an_id_that_follows_from_it() -> None:
    assert trajectory_id_of(UUID.upper()) == trajectory_id_of(UUID.replace("-", "")) == UUID
    assert trajectory_id_of("run_abc123") == named_id("trajectory", "run_abc123")
    assert uuid.UUID(trajectory_id_of("Lauf Ü 7")).version == 5
    assert trajectory_id_of(TRACE) == str(uuid.UUID(TRACE))


@pytest.mark.parametrize("name", ["", "a\nb", "\x00", "x" * (NAME_CHARACTERS + 1), "\ud800"])
def test_a_header_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        trajectory_id_of(name)


@pytest.mark.parametrize("header", ["x-ratchet-trajectory", "x-ratchet-run"])
def test_the_header_that_holds_no_name_is_named(header: str) -> None:
    long = {header.encode(): "x" * (NAME_CHARACTERS + 1)}
    with pytest.raises(BadRequest) as refused:
        Gateway().ask(USER, names=names_of(long.get, None))
    assert refused.value.param == header


def test_a_name_beyond_ascii_means_the_same_in_a_header_and_in_a_path() -> None:
    headers = {b"x-ratchet-run": "Lauf Ü".encode().decode("latin-1"), b"x-ratchet-trajectory": "\xff"}
    names = names_of(headers.get, None)
    assert (names.run, names.header) == ("Lauf Ü", "ÿ")


def test_tool_call_leads_back_however_the_rest_is_respelled() -> None:
    gateway = Gateway()
    first = gateway.answer(gateway.ask(USER), [USER], called("call_Zx91kk2lmQ8"), "turn-1")
    second = gateway.ask({"role": "user", "content": "all of it as text"}, HELLO, result("call_Zx91kk2lmQ8"))
    assert (second.trajectory_id, second.by, second.parent_turn_id) == (first.trajectory_id, "tool_call", "turn-1")


def test_what_a_gateway_remembers_counts_for_the_same_key_alone() -> None:
    gateway = Gateway()
    gateway.complete([USER], called("call_Zx91kk2lmQ8"), scope="a")
    gateway.complete([USER], HELLO, scope="a")
    assert gateway.ask(USER, result("call_Zx91kk2lmQ8"), called("call_Zx91kk2lmQ8"), scope="b").by == "new"
    assert gateway.ask(USER, HELLO, MORE, scope="b").by == "new"
    assert gateway.ask(USER, HELLO, MORE, scope="a").by == "prefix"


def test_a_tool_call_that_two_trajectories_were_given_belongs_to_neither() -> None:
    gateway = Gateway()
    answer = called("call_Zx91kk2lmQ8")
    gateway.complete([USER], answer)
    gateway.complete([USER], answer)
    assert gateway.ask(USER, answer, result("call_Zx91kk2lmQ8")).by == "new"


@pytest.mark.parametrize(
    ("call_id", "name", "is_random"),
    [
        ("call_Zx91kk2lmQ8aBcDeFgHiJkLm", "f", True),
        ("chatcmpl-tool-3f2a9c0d1b", "f", True),
        ("toolu_01A09q90qw90lq917835", "f", True),
        ("9kQ2mZx7a", "f", True),
        ("call_abcdefghij", "f", True),
        ("call_1", "f", False),
        ("call_00000000017", "f", False),
        ("functions.get_weather:0", "get_weather", False),
        ("get_weather-call-12", "get-weather", False),
        ("", "f", False),
    ],
)
def test_ids_that_count_or_name_the_tool_are_not_taken_for_random(call_id: str, name: str, is_random: bool) -> None:
    assert random_ids(called(call_id, name)) == ([call_id] if is_random else [])


def test_a_conversation_goes_on_where_this_gateway_answered_it() -> None:
    gateway = Gateway()
    first = gateway.complete([USER], {"role": "assistant", "content": " hello\n"})
    second = gateway.ask(USER, {"role": "assistant", "content": [{"type": "text", "text": "hello"}], "name": "x"}, MORE)
    assert (second.trajectory_id, second.by) == (first.trajectory_id, "prefix")
    assert gateway.ask(USER, {"role": "assistant", "content": "never said"}, MORE).by == "new"
    assert gateway.ask(USER, MORE).by == "new"


@pytest.mark.parametrize(("answer", "by"), [(HELLO, "prefix"), (called("call_93a9c2d17b"), "tool_call")])
@pytest.mark.parametrize(("later", "is_near"), [(SEARCHED - 2, True), (SEARCHED, False)])
def test_answer_is_looked_for_among_the_newest_messages(answer: JsonObject, by: str, later: int, is_near: bool) -> None:
    gateway = Gateway()
    gateway.complete([USER], answer)
    assert gateway.ask(USER, answer, *[MORE] * later).by == (by if is_near else "new")


def test_conversation_of_two_equal_trajectories_belongs_to_neither() -> None:
    gateway = Gateway()
    gateway.complete([USER], HELLO)
    gateway.complete([USER], HELLO)
    third = gateway.complete([USER, HELLO, MORE], {"role": "assistant", "content": "yes"})
    assert third.by == "new"
    following = gateway.ask(USER, HELLO, MORE, {"role": "assistant", "content": "yes"}, MORE)
    assert (following.by, following.trajectory_id) == ("prefix", third.trajectory_id)


def test_a_conversation_rests_no_longer_than_allowed() -> None:
    gateway = Gateway()
    gateway.complete([USER], HELLO)
    gateway.now += 3601
    assert gateway.ask(USER, HELLO, MORE).by == "new"


def test_what_continues_an_ended_trajectory_is_another_one() -> None:
    gateway = Gateway()
    first = gateway.complete([USER], called("call_Zx91kk2lmQ8"))
    gateway.identity.ended(first.trajectory_id)
    assert gateway.ask(USER, result("call_Zx91kk2lmQ8")).by == "new"


SYSTEM: JsonObject = {"role": "system", "content": "You are a clerk."}
JUDGE: JsonObject = {"role": "system", "content": "You are a judge."}
CALL = called("call_Zx91kk2lmQ8")
RESULT = result("call_Zx91kk2lmQ8")


@pytest.mark.parametrize(
    ("prompt", "by"),
    [
        ([SYSTEM, USER, CALL, RESULT], "tool_call"),
        ([SYSTEM, USER, CALL, RESULT, MORE], "tool_call"),
        ([{"role": "developer", "content": "You are a clerk."}, CALL, RESULT, HELLO, MORE], "tool_call"),
        ([JUDGE, USER, CALL, RESULT], "tool_call"),
        ([JUDGE, USER, CALL, RESULT, MORE], "new"),
        ([JUDGE, USER, CALL, RESULT, HELLO, MORE], "new"),
        ([USER, CALL, RESULT, MORE], "new"),
    ],
)  # fmt: skip
def test_who_repeats_a_tool_call_has_its_system_prompt_or_its_results(prompt: list[JsonObject], by: str) -> None:
    """A hand-over goes on with the results; a judge reads them."""
    gateway = Gateway()
    gateway.complete([SYSTEM, USER], CALL)
    assert gateway.ask(*prompt).by == by


def test_tool_call_serves_as_long_as_its_run_goes_on() -> None:
    gateway = Gateway()
    first = gateway.complete([USER], CALL)
    chat = [USER, CALL, RESULT]
    for _ in range(3):
        gateway.now += 3000
        call = gateway.complete(chat, HELLO)
        assert (call.trajectory_id, call.by) == (first.trajectory_id, "tool_call")
        chat = [*chat, HELLO, MORE]
    gateway.now += 3601
    assert gateway.ask(*chat).by == "new"


@pytest.mark.parametrize(
    "named",
    [
        {"metadata": {"thread_id": "t"}},
        {"metadata": {"session_id": UUID}},
        {"metadata": {"run_id": "t"}},
        {"conversation": "t"},
        {"prompt_cache_key": UUID},
        {"names": Names(run="t")},
        {"names": Names(traceparent=PARENT)},
    ],
)
def test_name_of_an_ended_trajectory_begins_another_with_one_id_for_all(
    named: dict[str, Any],
) -> None:
    one, other = Gateway(), Gateway()
    ids: list[str] = []
    for _ in range(4):
        ids.append(one.ask(USER, **named, key="k").trajectory_id)
        assert one.ask(MORE, **named, key="k").trajectory_id == ids[-1]
        assert other.ask(USER, **named, key="k").trajectory_id == ids[-1]
        one.identity.ended(ids[-1])
        other.identity.learn_end(ids[-1])
    assert len(set(ids)) == 4
    late = Gateway()
    for ended in reversed(ids):
        late.identity.learn_end(ended)
    assert late.ask(USER, **named, key="k").trajectory_id == one.ask(USER, **named, key="k").trajectory_id


@pytest.mark.parametrize("names", [Names(header="t"), Names(path="t")])
def test_a_header_or_path_names_one_trajectory_for_ever(names: Names) -> None:
    gateway = Gateway()
    first = gateway.ask(USER, names=names)
    gateway.identity.ended(first.trajectory_id)
    assert gateway.ask(USER, names=names).trajectory_id == first.trajectory_id == trajectory_id_of("t")


def test_names_of_threads_count_for_one_key_and_those_of_runs_for_all() -> None:
    gateway = Gateway()

    def asked(key: str, **members: Any) -> str:
        return gateway.ask(USER, key=key, **members).trajectory_id

    for members in ({"metadata": {"thread_id": "1"}}, {"metadata": {"session_id": "1"}}, {"conversation": "1"}):
        assert len({asked("a", **members), asked("b", **members), asked("", **members)}) == 3
    for members in ({"metadata": {"run_id": "1"}}, {"metadata": {"thread_id": UUID}}, {"names": Names(run="1")}):
        assert asked("a", **members) == asked("b", **members) == asked("", **members)


def test_name_in_an_end_means_own_ended_or_shared_trajectory() -> None:
    gateway = Gateway()
    own = gateway.ask(USER, metadata={"thread_id": "1"}, key="a").trajectory_id
    shared = trajectory_id_of("1")
    assert gateway.identity.meant_by("1", "a") == [own, shared, shared]
    assert gateway.identity.meant_by("1", "b")[0] != own
    gateway.identity.ended(own)
    following = gateway.ask(USER, metadata={"thread_id": "1"}, key="a").trajectory_id
    assert gateway.identity.meant_by("1", "a") == [following, own, shared, shared]
    assert gateway.identity.meant_by("1", "") == [shared, shared]
    assert gateway.identity.meant_by(UUID, "a") == [UUID]
    with pytest.raises(BadRequest):
        gateway.identity.meant_by("", "a")


def test_a_response_leads_to_the_one_before_it() -> None:
    gateway = Gateway()
    first = gateway.ask(USER)
    gateway.identity.answered(first, "turn-1", lambda: [USER], HELLO, response_id="resp_1")
    second = gateway.ask(MORE, previous_response_id="resp_1")
    assert (second.trajectory_id, second.by) == (first.trajectory_id, "previous_response")


def test_a_failed_call_is_repeated_once() -> None:
    gateway = Gateway()
    first = gateway.ask(USER)
    gateway.identity.failed(first)
    again = gateway.ask(USER)
    assert (again.trajectory_id, again.by) == (first.trajectory_id, "retry")
    assert gateway.ask(USER).by == "new"
    gateway.identity.failed(again)
    assert gateway.ask(USER).trajectory_id == first.trajectory_id


def test_an_answered_call_has_no_retry_and_a_failure_waits_only_a_while() -> None:
    gateway = Gateway()
    gateway.complete([USER], HELLO)
    assert gateway.ask(USER, names=Names(retries="1")).by == "new"
    gateway = Gateway()
    gateway.identity.failed(gateway.ask(USER))
    gateway.now += 61
    assert gateway.ask(USER).by == "new"


def test_sdk_that_repeats_a_call_which_it_gave_up_means_one_that_is_open() -> None:
    gateway = Gateway()
    first = gateway.ask(USER)
    again = gateway.ask(USER, names=Names(retries="1"))
    assert (again.trajectory_id, again.by) == (first.trajectory_id, "retry")
    gateway.identity.failed(first)  # the gateway notices only now that its client is gone
    assert gateway.ask(USER).by == "new"


def test_of_two_open_calls_neither_is_the_one_that_is_repeated() -> None:
    gateway = Gateway()
    gateway.ask(USER)
    gateway.ask(USER)
    assert gateway.ask(USER, names=Names(retries="1")).by == "new"
    assert gateway.ask(USER, names=Names(retries="0")).by == "new"


def test_messages_that_no_one_can_read_are_no_reason_to_fail() -> None:
    nested: Any = "x"
    for _ in range(5000):
        nested = [nested]
    odd: list[JsonObject] = [
        {"role": ["assistant"], "content": {"x": 1}},
        {"role": "assistant", "content": nested, "tool_calls": "none"},
        {
            "role": "assistant",
            "tool_calls": [{"id": 7, "function": 1}, "x", {"function": {"arguments": '{"a": 1e999}'}}],
        },
        {"role": "assistant", "function_call": {"name": 1, "arguments": [2**80]}},
        {"role": "tool", "tool_call_id": []},
    ]
    gateway = Gateway()
    first = gateway.complete(odd, odd[2], body=b"1")
    assert gateway.ask(*odd, odd[2], MORE, body=b"2").trajectory_id == first.trajectory_id


claims = st.builds(Claim, st.sampled_from("abcdef"), st.sampled_from("123"), st.floats(0, 3))
several = st.lists(claims, max_size=6).map(lambda each: Claims().merged(Claims(tuple(each))))


@given(several, several, several)
def test_claims_merge_in_any_order_and_any_number_of_times(a: Claims, b: Claims, c: Claims) -> None:
    assert a.merged(b) == b.merged(a)
    assert a.merged(b).merged(c) == a.merged(b.merged(c))
    assert a.merged(b).merged(b) == a.merged(b)
    assert len(a.merged(b).merged(c).each) <= CLAIMS


def test_marks_stay_within_their_bound() -> None:
    identity = Identity(700 * 10, lambda: "", lambda: 0.0)
    for number in range(100):
        identity.learn_answer(AnswerNote(trajectory_id="t", turn_id="u", marks=[f"t{number}"]), 0.0)
    assert len(identity.marks) == 10
    assert identity.marks.get_value("t99") is not None
    assert identity.marks.get_value("t0") is None


def subject(user: str | None = None, session: str | None = None, **asked: Any) -> str | None:
    names, key, secret = (asked.pop(name, plain) for name, plain in (("names", Names()), ("key", ""), ("secret", b"k")))
    return subject_ref(Asked("scope", names, asked, b"", list, key), user, session, secret)


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ({"user": "alice", "session": "s"}, {"user": "alice"}),
        ({"session": "s", "metadata": {"session_id": "t"}}, {"session": "s"}),
        ({"metadata": {"thread_id": "t", "session_id": "s"}}, {"session": "s"}),
        ({"metadata": {"trajectory_id": "r", "run_id": "r", "thread_id": "t"}}, {"session": "t"}),
        ({"names": Names(session=UUID), "conversation": "c"}, {"session": UUID}),
        ({"prompt_cache_key": f"codex-{UUID}"}, {"session": UUID}),
        ({"conversation": {"id": "conv_1"}}, {"session": "conv_1"}),
        ({"user": UUID, "key": "one"}, {"user": UUID, "key": "two"}),
    ],
)
def test_the_widest_name_that_a_call_has_is_its_subject(asked: dict[str, Any], same: dict[str, Any]) -> None:
    named = subject(**asked)
    assert named is not None
    assert named == subject(**same)


@pytest.mark.parametrize(
    "other",
    [
        {"user": "bob"},
        {"session": "alice"},
        {"user": "alice", "key": "two"},
        {"user": "alice", "secret": b"another"},
    ],
)
def test_a_subject_differs_by_name_kind_key_and_secret(other: dict[str, Any]) -> None:
    assert subject(**other) != subject("alice", key="one")


def test_gateways_with_one_secret_hash_subjects_alike() -> None:
    keys = [
        Settings(user_key=user, shared=SharedSettings(service_key=service)).subject_key for user, service in SECRETS
    ]
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert len(set(keys)) == 3
    assert keys[4] == b""


def test_what_names_a_trajectory_alone_is_no_subject() -> None:
    names = Names(header="run 7", path="run 7", run="run 7", traceparent=PARENT, session="17")
    asked = {"metadata": {"trajectory_id": "r", "run_id": "r"}, "prompt_cache_key": "my-app-v1"}
    assert subject(names=names, previous_response_id="resp_1", **asked) is None


@given(st.text(st.characters(), min_size=1))
def test_a_subjects_hash_has_16_digits_whatever_the_name(name: str) -> None:
    made = subject(name)
    assert made is not None
    assert (len(made), len(bytes.fromhex(made))) == (16, 8)
