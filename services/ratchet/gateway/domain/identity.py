"""Which trajectory a call belongs to: what the agent says about it, else what the gateways remember having answered.

The first that applies decides:

| by | the call has |
|---|---|
| `header`, `path` | `x-ratchet-trajectory`, or a base_url `/t/<name>/v1` |
| `run` | `x-ratchet-run` |
| `trace` | the trace id of `traceparent`, sampled or not |
| `metadata` | `trajectory_id`, `run_id`, `thread_id` or `session_id` in the body's `metadata` |
| `session` | a session of Claude Code or Codex: the UUID in `SESSION_HEADERS`, or in `metadata.user_id` |
| `prompt_cache_key` | one that holds a UUID: others name an application, and all its runs share them |
| `conversation` | the Responses API's `conversation` |
| `previous_response` | the id of a response that a gateway gave |
| `retry` | the body of a call that failed a moment ago, or that its client gave up |
| `tool_call` | the id of a tool call that a gateway handed out: under this system prompt, or the prompt ends with it |
| `prefix` | messages that begin with a conversation which a gateway answered, up to and with that answer |
| `new` | nothing of these |

A name is any text of up to 200 printable characters. A UUID, or a trace id, is the trajectory's id as it is; of any
other text the id is a UUIDv5. Names of threads, sessions, conversations and caches that are no UUIDs count for one API
key; all others mean the same to all keys. A call under a name whose trajectory has ended begins the next one of that
name, whose id follows from that of the ended one; a header or a path names one trajectory for ever. What gateways
remember counts for the same API key only, no longer than a conversation may rest, and must point to one trajectory: of
two, either may be wrong, so the call begins a new one.

Whose a trajectory is, its subject, its first call alone says (`subject_ref`): nothing is remembered for that.

Each process remembers what it answered and, from their notes, what all others did. A note may still be on its way:
where that could change what a call belongs to, the answer is not certain yet, and the caller looks again.

Which earlier call a turn continues is asked after the answer, of the recorder (`past_calls.Conversations`), which holds
the token ids. One component cannot know both at the same cost: a question to the recorder takes 8 ms, behind its other
jobs; to digest the prompts of named calls here would take 56 µs of 16,000 characters and 258 of 100,000 while agents
wait, and the ids of the parent (32 KB) would travel with each job.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import msgspec

from ratchet.bus.message import named_id
from ratchet.bus.recent import Recent
from ratchet.core.contract.gateway_notes import AnswerNote, FailureNote, RepetitionNote
from ratchet.core.contract.traces import read_traceparent
from ratchet.core.errors import BadRequest
from ratchet.core.rules.chat.links import (
    call_ids,
    extended,
    open_calls,
    prefix_digests,
    repeated_ids,
    system_prompt_digest,
    tools_called,
)
from ratchet.core.rules.texts import NAME_CHARACTERS, id_of_name, is_name
from ratchet.dialects.requests import CLAUDE_SESSION, USER_ID, USER_ID_CHARACTERS, UUID
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.retries import Retries

Messages = Sequence[Mapping[str, Any]]
"""`Any`: agents send what they like."""

SUBJECT_BYTES = 8
"""Length of a subject's hash: two of 100,000 subjects share one with a chance of 1 in 3 billion."""
NAMES = 8192
"""Names whose ids are remembered: an agent sends its name with every call."""
SEARCHED = 10_000
"""So many of a conversation's newest messages, and of their tool calls, are looked for: .05 s, while others wait."""
RANDOM_CHARACTERS = 8
"""Letters and digits of a tool call's id, beside the words in it, from which on it is taken for random. Some engines
count instead (`call_1`, `functions.search:0`), and such ids come again in every run."""
RETRY_S = 60.0
"""How long a failed call waits for its retry."""
MARKS = 100
"""Tool calls of one answer by which the next call is recognised: more than anyone asks for at once."""
CLAIMS = 4
"""Claims of one mark that are kept: those of two trajectories already say that it points to neither."""
MARK_BYTES, ENDED_BYTES = 700, 300
"""Costs, measured and rounded up: of a mark with its claims, of a trajectory that has ended."""
ENDED_LIMIT = 3 * 1024 * 1024
"""Memory for ended trajectories: the newest ten thousand."""

HEADER, PATH, RUN, TRACE, METADATA, SESSION = "header", "path", "run", "trace", "metadata", "session"
CACHE_KEY, CONVERSATION, PREVIOUS_RESPONSE = "prompt_cache_key", "conversation", "previous_response"
RETRY, TOOL_CALL, PREFIX, NEW = "retry", "tool_call", "prefix", "new"
NAMING_MEMBERS = ("metadata", "prompt_cache_key", "conversation", "previous_response_id")
"""Members of a request that may name its trajectory."""
METADATA_MEMBERS = {"trajectory_id": True, "run_id": True, "thread_id": False, "session_id": False}
"""Members of `metadata` that may name the trajectory, and whether they mean the same to all keys."""
ONE_FOR_EVER = frozenset({HEADER, PATH})
"""Ways to name a trajectory whose end changes nothing: what comes later under the name is added to it."""
SESSION_HEADERS = (b"x-claude-code-session-id", b"session-id", b"session_id", b"conversation_id")
"""Headers in which command-line agents name their session: Claude Code, Codex, and Codex until 2025. Sub-agents send
that of their parent."""

_UUID = re.compile(UUID)
_WORDS = re.compile(r"chatcmpl|functions?|toolu?|call|fc|[^a-z0-9]+")


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """One trajectory's claim to a mark."""

    trajectory_id: str
    turn_id: str
    """The call whose answer made the mark."""
    at_s: float
    """When, in seconds of Unix time."""


class Claims(msgspec.Struct, frozen=True, array_like=True):
    """Everything that is known of a mark. Values of several workers merge in any order, and as often as one likes."""

    each: tuple[Claim, ...] = ()
    """The newest claim of each trajectory; at most `CLAIMS`, the first ones by id."""

    def merged(self, other: Claims) -> Claims:
        """The claims of both: every trajectory keeps its newest one."""
        newest: dict[str, Claim] = {}
        for claim in (*self.each, *other.each):
            known = newest.get(claim.trajectory_id)
            if known is None or (known.at_s, known.turn_id) < (claim.at_s, claim.turn_id):
                newest[claim.trajectory_id] = claim
        return Claims(tuple(newest[key] for key in sorted(newest))[:CLAIMS])

    @property
    def only(self) -> Claim | None:
        """The claim of the only trajectory that has one; None with several."""
        return self.each[0] if len(self.each) == 1 else None


@dataclass(frozen=True, slots=True)
class Names:
    """What a request says about its trajectory outside its body; texts as they came."""

    header: str | None = None
    """`x-ratchet-trajectory`."""
    path: str | None = None
    """Of `/t/<name>/v1`."""
    run: str | None = None
    """`x-ratchet-run`."""
    traceparent: str | None = None
    session: str | None = None
    """The first of `SESSION_HEADERS`."""
    retries: str | None = None
    """`x-stainless-retry-count`, which the SDKs of OpenAI and Anthropic send."""


@dataclass(slots=True, eq=False)
class Asked:
    """What a call says of the trajectory that it belongs to."""

    scope: str
    """Whose memory of answers counts: the id of the API key."""
    names: Names
    members: Mapping[str, Any]
    """Those of `NAMING_MEMBERS` that the body has. `Any`: agents send what they like."""
    body: bytes
    messages: Callable[[], Messages]
    """The prompt; asked for only if nothing names the trajectory."""
    key: str = ""
    """Whose names count: the id of the API key; empty where the gateway asks for none."""
    _conversation: Messages | None = None
    _digests: Sequence[bytes] | None = None

    @property
    def conversation(self) -> Messages:
        """The prompt, read once."""
        if self._conversation is None:
            self._conversation = self.messages()
        return self._conversation

    @property
    def digests(self) -> Sequence[bytes]:
        """Digests of the first 0, 1, ... n messages, made once."""
        if self._digests is None:
            self._digests = prefix_digests(self.conversation)
        return self._digests

    @property
    def previous_response(self) -> str | None:
        """The response that it continues, by its own word."""
        previous = self.members.get("previous_response_id")
        return previous if isinstance(previous, str) else None

    @property
    def is_retry(self) -> bool:
        """Whether its client says that it repeats a call."""
        return (self.names.retries or "0").strip() not in {"0", ""}


@dataclass(frozen=True, slots=True, eq=False)
class Recognised:
    """The trajectory of a call, and what it takes to recognise the next one. One value stands for one call."""

    trajectory_id: str
    by: str
    scope: str
    """What its marks count for: the id of its API key."""
    parent_turn_id: str | None = None
    """The call that it continues, where the gateway recognised it by that. A hint: the turn says what it continues."""
    digest: bytes | None = None
    """Of its messages, if that was needed."""
    tool_call: str | None = None
    """The id of the tool call by which it was recognised."""
    is_certain: bool = True
    """Nothing that another gateway has answered meanwhile could change it."""
    name: str | None = None
    """What the agent calls the trajectory, where that is a text of its own and no id."""

    @property
    def is_named(self) -> bool:
        """The agent names the trajectory, and will name it again: its answers need not be remembered."""
        return self.by not in _BY_MEMORY


class Identity:
    """Recognises the trajectory of each call, by what this process and all others have answered."""

    def __init__(
        self,
        marks_bytes: int,
        new_id: Callable[[], str],
        now_s: Callable[[], float],
        *,
        rest_s: float = 3600.0,
        updates: PeerUpdates | None = None,
    ) -> None:
        """`marks_bytes`: memory for what calls are recognised by. `new_id` makes the id of a trajectory, `now_s` is
        Unix time; `updates` take what others should know.

        `rest_s`: how long a conversation may rest between two calls and be recognised by its beginning.
        """
        self.marks = Recent[str, Claims](marks_bytes)
        """The claims to a mark. It must know those of all gateways: a missing one turns two candidates into one, which
        may be the wrong one."""
        self._new_id = new_id
        self._now_s = now_s
        self._rest_s = rest_s
        self._updates = updates or PeerUpdates()
        self._retries = Retries[Recognised](now_s, RETRY_S)
        self._ended = Recent[str, str](ENDED_LIMIT)
        """By trajectory that has ended: the last one known to have ended of those that had its name after it."""

    def look_up(self, asked: Asked) -> Recognised:
        """The trajectory of a call, as far as this process knows now.

        Raises `BadRequest` for a header or path that is no name.
        """
        named = self._named(asked)
        if named is not None:
            trajectory_id, way, name = named
            return Recognised(trajectory_id, way, asked.scope, name=None if name is None or _is_id(name) else name)
        return self._of_response(asked) or self._repeated(asked) or self._of_past(asked)

    def confirmed(self, call: Recognised) -> Recognised:
        """A call of which other gateways may know more than is known here: one that only its beginning tells apart from
        others may be another run's, and begins a trajectory."""
        if call.is_certain or call.by != PREFIX:
            return call
        return replace(call, trajectory_id=self._new_id(), by=NEW, parent_turn_id=None)

    def begin(self, asked: Asked, call: Recognised) -> None:
        """The call is on its way. The caller reports `answered` or `failed` when it is over."""
        if not call.is_named:
            self._retries.open(asked.scope, asked.body, call)

    def answered(
        self,
        call: Recognised,
        turn_id: str,
        messages: Callable[[], Messages],
        answer: Mapping[str, Any],
        response_id: str | None = None,
    ) -> None:
        """Remember an answer before its agent can make its next call: with the last event of a stream at the latest.

        `answer`: the assistant message; `response_id`: of the Responses API.
        """
        if call.is_named:
            return
        self._retries.close(call)
        ids = random_ids(answer)
        repeated = ids or ([call.tool_call] if call.tool_call else [])  # the latter stays fresh while its run goes on
        marks = _tool_marks(call.scope, messages(), repeated[:MARKS]) if repeated else []
        if response_id is not None:
            marks.append(_mark("r", call.scope, response_id))
        if not ids and call.by in _BY_TEXT:  # else the next call names its trajectory, or repeats the ids
            before = call.digest or prefix_digests(messages())[-1]
            marks.append(_prefix_mark(call.scope, extended(before, {**answer, "role": "assistant"})))
        self._claim(marks, Claim(call.trajectory_id, turn_id, self._now_s()))
        self._updates.answered(call.trajectory_id, turn_id, marks)

    def failed(self, call: Recognised) -> None:
        """Remember a call that failed, or whose client gave it up: the same body soon after is its next attempt."""
        failed = self._retries.fail(call)
        if failed is not None:
            self._updates.failed(call.trajectory_id, failed.mark, failed.length, call.parent_turn_id)

    def ended(self, trajectory_id: str) -> None:
        """The agent has ended a trajectory: a call without a name that continues its conversation begins another."""
        self._updates.ended(trajectory_id)
        self.learn_end(trajectory_id)

    def learn_answer(self, note: AnswerNote, at_s: float) -> None:
        """Another process has answered a call."""
        self._claim(note.marks, Claim(note.trajectory_id, note.turn_id, at_s))

    def learn_failure(self, note: FailureNote, at_s: float) -> None:
        """A call failed at another process."""
        call = Recognised(note.trajectory_id, RETRY, "", note.parent_turn_id)
        self._retries.learn_failed(call, note.mark, note.length, at_s + RETRY_S)

    def learn_repetition(self, note: RepetitionNote) -> None:
        """Another process has a failed call's repetition."""
        self._retries.forget(note.mark, note.length, lambda call: call.trajectory_id == note.trajectory_id)

    def learn_end(self, trajectory_id: str) -> None:
        """An agent has ended a trajectory, here or at another process."""
        self._ended.put_value(trajectory_id, trajectory_id, ENDED_BYTES)

    def meant_by(self, name: str, key: str) -> list[str]:
        """The trajectories that a name may mean in an end or feedback of this API key, the likeliest first.

        The last one is what it means if no call is known. A UUID is an id, and means that trajectory alone. Raises
        `BadRequest` for what is no name.
        """
        shared = trajectory_id_of(name, "trajectory_id")
        if _is_id(name):
            return [shared]
        lines = [self._line(first) for first in dict.fromkeys((_id_of(name, key), shared))]
        return [
            *(trajectory_id for ended, current in lines for trajectory_id in (current, ended) if trajectory_id),
            shared,
        ]

    def _line(self, first: str) -> tuple[str | None, str]:
        """Of the trajectories that have had a name one after the other: the last one that ended, and the one now."""
        ended, current = None, first
        while (known := self._ended.get_value(current)) is not None:
            ended, current = known, _after(known)
        if ended is not None and ended != first:
            self._ended.put_value(first, ended, ENDED_BYTES)
        return ended, current

    def _claim(self, marks: Sequence[str], claim: Claim) -> None:
        for mark in marks:
            known, claims = self.marks.get_value(mark), Claims((claim,))
            self.marks.put_value(mark, known.merged(claims) if known else claims, MARK_BYTES)

    def _named(self, asked: Asked) -> tuple[str, str, str | None] | None:
        names = asked.names
        for way, text in ((HEADER, names.header), (PATH, names.path), (RUN, names.run)):
            if text:
                first = trajectory_id_of(text, _PLACES[way])
                return (first if way in ONE_FOR_EVER else self._line(first)[1]), way, text
        if names.traceparent:
            trace = read_traceparent(names.traceparent)
            if trace is not None:
                return self._line(str(uuid.UUID(trace.trace_id)))[1], TRACE, None
        named = next(_names_in(asked.members, names.session), None)
        if named is None:
            return None
        way, text, is_shared = named
        return self._line(_id_of(text, "" if is_shared else asked.key))[1], way, text

    def _of_response(self, asked: Asked) -> Recognised | None:
        previous = asked.previous_response
        claim = self._claim_of(_mark("r", asked.scope, previous)) if previous is not None else None
        return claim and Recognised(claim.trajectory_id, PREVIOUS_RESPONSE, asked.scope, claim.turn_id)

    def _repeated(self, asked: Asked) -> Recognised | None:
        failed = self._retries.take_failed(asked.scope, asked.body)
        if failed is not None:
            self._updates.repeated(failed.value.trajectory_id, failed.mark, failed.length)
        earlier = failed.value if failed else None
        if earlier is None and asked.is_retry:
            earlier = self._retries.take_open(asked.scope, asked.body)
        if earlier is None or self._has_ended(earlier.trajectory_id):
            return None
        return replace(earlier, by=RETRY, scope=asked.scope, is_certain=True)

    def _of_past(self, asked: Asked) -> Recognised:
        """By what the gateways have answered. A conversation without an answer begins a trajectory."""
        scope = asked.scope
        is_new = not (asked.previous_response or asked.is_retry)
        conversation = asked.conversation
        if not any(message.get("role") == "assistant" for message in conversation):
            return Recognised(self._new_id(), NEW, scope, is_certain=is_new)
        called = self._of_tool_calls(scope, conversation)
        if called is not None:
            call_id, claim = called
            return Recognised(claim.trajectory_id, TOOL_CALL, scope, claim.turn_id, tool_call=call_id)
        digests = asked.digests
        claim = self._of_prefix(scope, conversation, digests)
        if claim is not None:
            return Recognised(claim.trajectory_id, PREFIX, scope, claim.turn_id, digests[-1], is_certain=False)
        return Recognised(self._new_id(), NEW, scope, None, digests[-1], is_certain=False)

    def _of_tool_calls(self, scope: str, conversation: Messages) -> tuple[str, Claim] | None:
        """The newest tool call of the conversation that one trajectory alone was given, not too long ago.

        Its results must end the prompt, or the system prompt be the one under which it was made: a judge repeats the
        calls of a run too.
        """
        results, system = open_calls(conversation), system_prompt_digest(conversation)
        newest = islice(reversed(conversation), SEARCHED)
        asked: set[str] = set()
        for call_id in islice((call_id for message in newest for call_id in repeated_ids(message)), SEARCHED):
            if call_id not in asked:
                asked.add(call_id)
                mark = _mark("t", scope, call_id) if call_id in results else _system_mark(scope, system, call_id)
                claim = self._fresh(self._claim_of(mark))
                if claim is not None:
                    return call_id, claim
        return None

    def _of_prefix(self, scope: str, conversation: Messages, digests: Sequence[bytes]) -> Claim | None:
        """The longest beginning of the conversation that ends with an answer of this gateway.

        If several trajectories were given that one, so were they everything before it: then it is none of them.
        """
        for place in islice(range(len(conversation), 0, -1), SEARCHED):
            if conversation[place - 1].get("role") == "assistant":
                claims = self.marks.get_value(_prefix_mark(scope, digests[place]))
                if claims is not None:
                    claim = self._fresh(claims.only)
                    return None if claim is None or self._has_ended(claim.trajectory_id) else claim
        return None

    def _fresh(self, claim: Claim | None) -> Claim | None:
        """The claim, unless its conversation has rested for too long."""
        return None if claim is None or claim.at_s < self._now_s() - self._rest_s else claim

    def _claim_of(self, mark: str) -> Claim | None:
        claims = self.marks.get_value(mark)
        claim = claims.only if claims else None
        return None if claim is None or self._has_ended(claim.trajectory_id) else claim

    def _has_ended(self, trajectory_id: str) -> bool:
        return self._ended.get_value(trajectory_id) is not None


_BY_MEMORY = frozenset({PREVIOUS_RESPONSE, RETRY, TOOL_CALL, PREFIX, NEW})
_BY_TEXT = frozenset({RETRY, PREFIX, NEW})
"""A trajectory that was recognised in one of these ways may be recognised next time by what was said alone."""


_PLACES = {HEADER: "x-ratchet-trajectory", PATH: "trajectory", RUN: "x-ratchet-run"}
"""Where a request has the names that an agent gives in so many words."""


def trajectory_id_of(name: str, place: str = "x-ratchet-trajectory") -> str:
    """The id of the trajectory that a name means: a UUID as it is, any other name's UUIDv5.

    Raises `BadRequest` that names the `place` of what is no name.
    """
    if not is_name(name):
        message = f"a trajectory's name must have 1 to {NAME_CHARACTERS} printable characters"
        raise BadRequest(message, param=place)
    return _id_of(name)


def names_of(header: Callable[[bytes], str | None], path: str | None) -> Names:
    """The names that a request's headers hold; `header` gives one as ASGI does, in latin-1."""
    return Names(
        header=_as_utf8(header(b"x-ratchet-trajectory")),
        path=path,
        run=_as_utf8(header(b"x-ratchet-run")),
        traceparent=header(b"traceparent"),
        session=next((text for name in SESSION_HEADERS if (text := header(name))), None),
        retries=header(b"x-stainless-retry-count"),
    )


def _as_utf8(text: str | None) -> str | None:
    """Clients send text beyond ASCII as UTF-8, so that it is the same name as in a path."""
    if text is None or text.isascii():
        return text
    try:
        return text.encode("latin-1").decode()
    except UnicodeDecodeError:
        return text


def random_ids(answer: Mapping[str, Any]) -> list[str]:
    """The ids of an answer's tool calls that no other answer has: not those that count, or name the tool."""
    names = [_bare(name) for name in tools_called(answer) if name]
    return [call_id for call_id in call_ids(answer) if _is_random(call_id, names)]


def _is_random(call_id: str, names: Sequence[str]) -> bool:
    rest = _bare(call_id)
    for name in names:
        rest = rest.replace(name, "")
    return len(rest) >= RANDOM_CHARACTERS and not rest.isdigit()


def _bare(text: str) -> str:
    """A text without its punctuation and the words that ids of tool calls begin with."""
    return _WORDS.sub("", text[:NAME_CHARACTERS].lower())


def _names_in(members: Mapping[str, Any], session: str | None) -> Iterator[tuple[str, str, bool]]:
    """Ways and names that a body holds, and the session that a header names, in the order in which they count; and
    whether they mean the same to all keys."""
    metadata = members.get("metadata")
    named = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    yield from ((METADATA, text, same) for name, same in METADATA_MEMBERS.items() if (text := _name(named.get(name))))
    if session and _UUID.fullmatch(session):
        yield SESSION, session, False
    user = named.get(USER_ID)
    if isinstance(user, str) and (match := CLAUDE_SESSION.search(user[:USER_ID_CHARACTERS])):
        yield SESSION, match[1], False
    cache_key = _name(members.get("prompt_cache_key"))
    if cache_key and (match := _UUID.search(cache_key)):
        yield CACHE_KEY, match[0], False
    conversation = members.get("conversation")
    if isinstance(conversation, dict):
        conversation = cast("dict[str, Any]", conversation).get("id")
    if text := _name(conversation):
        yield CONVERSATION, text, False


def subject_ref(asked: Asked, user: str | None, session: str | None, secret: bytes) -> str | None:
    """Keyed hash of the widest name of who makes a trajectory: its user, else its session; None without either.

    `session`: the label `x-ratchet-session`. Of sessions that the body names, `metadata.session_id` is the widest. As
    with trajectories, a name that is no UUID counts for one API key. What names this trajectory alone, a run or a
    trace, is no subject. Sub-agents send their parent's user or session, and so share its subject.
    """
    kind, name = ("user", user) if user else ("session", session or _session_in(asked))
    if not name:
        return None
    text = f"{kind}\n{'' if _is_id(name) else asked.key}\n{name}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=SUBJECT_BYTES, key=secret, person=b"ratchet subject").hexdigest()


def _session_in(asked: Asked) -> str | None:
    metadata = asked.members.get("metadata")
    named = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    others = (text for _, text, is_shared in _names_in(asked.members, asked.names.session) if not is_shared)
    return _name(named.get("session_id")) or next(others, None)


def _name(value: object) -> str | None:
    """A value of the body that can be a name: other values mean something else to their sender."""
    return value if isinstance(value, str) and is_name(value) else None


@lru_cache(maxsize=NAMES)
def _id_of(name: str, key: str = "") -> str:
    return id_of_name(name, key)


def _is_id(name: str) -> bool:
    try:
        uuid.UUID(name)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=NAMES)
def _after(trajectory_id: str) -> str:
    """The id of the trajectory that has the same name after this one ended: every gateway gives the same."""
    return named_id("trajectory after", trajectory_id)


def _tool_marks(scope: str, messages: Messages, ids: Sequence[str]) -> list[str]:
    system = system_prompt_digest(messages)
    return [mark for call_id in ids for mark in (_mark("t", scope, call_id), _system_mark(scope, system, call_id))]


def _system_mark(scope: str, system: bytes, call_id: str) -> str:
    return _mark("s", scope, f"{system.hex()}\n{call_id}")


def _mark(kind: str, scope: str, text: str) -> str:
    """The mark of an id that comes from outside: a digest, since such a text has any length and any characters."""
    return kind + hashlib.blake2b(f"{scope}\n{text}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _prefix_mark(scope: str, digest: bytes) -> str:
    return _mark("p", scope, digest.hex())
