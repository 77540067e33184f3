"""Runs of agents side by side, as a gateway sees them: what each asks, how its client respells answers, what fails."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.core.contract import JsonObject
from ratchet.gateway.domain.identity import Asked, Names, Recognised
from tests.support.peer_process import Process, Processes

Spelling = Callable[[JsonObject], JsonObject]
"""How a client sends an answer back."""
Script = Iterator[list[JsonObject]]
"""A run: it yields the prompt of each call, and is sent the answer."""


def spaced(answer: JsonObject) -> JsonObject:
    """Arguments with spaces, members in another order, further members (LangChain, AG2, Strands)."""
    calls = [
        _with_arguments(call, lambda value: json.dumps(value, indent=1)) for call in answer.get("tool_calls") or ()
    ]
    return {
        **({"tool_calls": calls} if calls else {}),
        "content": answer.get("content"),
        "role": "assistant",
        "refusal": None,
    }


def empty_content(answer: JsonObject) -> JsonObject:
    """Compact arguments, "" for null, a name, an index (Agno, instructor, LangChain.js)."""
    calls = [
        {**_with_arguments(call, lambda value: json.dumps(value, separators=(",", ":"))), "index": place}
        for place, call in enumerate(answer.get("tool_calls") or ())
    ]
    return {
        "role": "assistant",
        "name": "model",
        "content": answer.get("content") or "",
        **({"tool_calls": calls} if calls else {}),
    }


def in_parts(answer: JsonObject) -> JsonObject:
    """Text as a list of parts, trimmed (AI SDK, smolagents)."""
    text = answer.get("content")
    return {**answer, "content": [{"type": "text", "text": text.strip()}] if text else []}


def as_text(answer: JsonObject) -> JsonObject:
    """Calls as text, the way Python writes them (smolagents)."""
    calls = answer.get("tool_calls")
    return {"role": "assistant", "content": f"Calling tools:\n{calls}" if calls else answer.get("content")}


def exact(answer: JsonObject) -> JsonObject:
    """As it came."""
    return answer


SPELLINGS: Sequence[Spelling] = (exact, spaced, empty_content, in_parts)


def _with_arguments(call: JsonObject, write: Callable[[Any], str]) -> JsonObject:
    function = call["function"]
    return {**call, "function": {**function, "arguments": write(json.loads(function["arguments"]))}}


@dataclass
class Tally:
    """What became of the calls of some runs."""

    calls: int = 0
    wrong: int = 0
    """Calls that were added to the trajectory of another run."""
    missed: int = 0
    """Calls in the middle of a run that began another trajectory."""
    by: dict[str, int] = field(default_factory=dict[str, int])


@dataclass
class Side:
    """Runs side by side behind one gateway, or several, in an order that is drawn.

    Each call goes to any of them. Their notes may be late; a call that is not certain waits for them.
    """

    chance: random.Random
    failing: float = 0.0
    """Part of the calls that fail first; their client repeats them."""
    counts_retries: bool = True
    """Its client counts retries in a header, as SDKs do."""
    gateways: int = 1
    members: Callable[[int], JsonObject] = lambda _: {}
    """What the run of a number says of its trajectory in each body."""
    played: int = 0
    """Runs so far."""
    world: Processes = field(init=False)
    tally: Tally = field(default_factory=Tally)
    current: dict[int, str] = field(default_factory=dict[int, str])
    """By number of a run: the trajectory of its last call."""
    _owners: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self.world = Processes(self.gateways)

    def play(self, runs: Sequence[tuple[Script, Callable[[list[JsonObject]], JsonObject]]]) -> Tally:
        """Play all runs to their end; each has a script, and what its engine answers."""
        waiting = {number: (script, answer, next(script)) for number, (script, answer) in enumerate(runs, self.played)}
        self.played += len(runs)
        current = self.current
        while waiting:
            number = self.chance.choice(sorted(waiting))
            script, engine, prompt = waiting.pop(number)
            self.world.now_s += 1.0
            body = json.dumps(prompt).encode()
            gateway, call = self._asked(prompt, body, Names(), number)
            self._count(number, call, current)
            if self.chance.random() < self.failing:
                gateway.identity.failed(call)
                again = Names(retries="1" if self.counts_retries else None)
                gateway, call = self._asked(prompt, body, again, number)
                self._count(number, call, current)
            answer = engine(prompt)
            gateway.answer(call, prompt, answer)
            try:
                waiting[number] = script, engine, script.send(answer)  # type: ignore[attr-defined]
            except StopIteration:
                continue
        return self.tally

    def rest(self, seconds: float) -> None:
        """Nothing happens for a while; notes arrive before."""
        for gateway in self.world.each:
            for other in self.world.each:
                if other is not gateway:
                    gateway.hear(other)
        self.world.now_s += seconds

    def end(self) -> None:
        """All runs end, and every gateway hears of it."""
        for gateway in self.world.each:
            for trajectory_id in self.current.values():
                gateway.identity.learn_end(trajectory_id)

    def _asked(self, prompt: list[JsonObject], body: bytes, names: Names, number: int) -> tuple[Process, Recognised]:
        gateway = self.chance.choice(self.world.each)
        others = [one for one in self.world.each if one is not gateway]
        for other in others:
            if self.chance.random() < 0.5:
                gateway.hear(other)
        asked = Asked("key", names, self.members(number), body, lambda: prompt, "key")
        call = gateway.identity.look_up(asked)
        if not call.is_certain:
            for other in others:
                gateway.hear(other)
            call = gateway.identity.look_up(asked)
        gateway.identity.begin(asked, call)
        self.tally.calls += 1
        self.tally.by[call.by] = self.tally.by.get(call.by, 0) + 1
        return gateway, call

    def _count(self, number: int, call: Recognised, current: dict[int, str]) -> None:
        owner = self._owners.setdefault(call.trajectory_id, number)
        if owner != number:
            self.tally.wrong += 1
        elif current.setdefault(number, call.trajectory_id) != call.trajectory_id:
            self.tally.missed += 1
            current[number] = call.trajectory_id


def recorded(chat: Sequence[JsonObject], spelling: Spelling) -> tuple[Script, Callable[[list[JsonObject]], JsonObject]]:
    """A run that happened: every answer comes as it came then."""
    answers = [place for place, message in enumerate(chat) if message["role"] == "assistant"]
    reply = iter([chat[place] for place in answers])

    def script() -> Script:
        sent: list[JsonObject] = []
        for place, message in enumerate(chat[: answers[-1] + 1]):
            if place in answers:
                sent.append(spelling((yield list(sent))))  # type: ignore[misc]
            else:
                sent.append(message)

    return script(), lambda _: next(reply)


def loop(
    system: Callable[[], str],
    question: str,
    calls: int,
    spelling: Spelling,
    *,
    tools: bool = True,
    forks: bool = False,
    topic: str = "",
) -> Script:
    """An agent's loop; `forks`: it asks each question twice and goes on from the second answer."""
    chat: list[JsonObject] = [{"role": "user", "content": question}]
    for number in range(calls):
        prompt = [{"role": "system", "content": system()}, *chat]
        answer: JsonObject = yield prompt  # type: ignore[misc,assignment]
        if forks and number:
            answer = yield [*prompt, {"role": "user", "content": "Again, please."}]  # type: ignore[misc,assignment]
        sent = spelling(answer)
        chat.append(sent)
        called: list[JsonObject] = answer.get("tool_calls") or []
        chat += [_result(call, number, as_tool="tool_calls" in sent) for call in called]
        if not tools or not called:
            chat.append({"role": "user", "content": f"and then {number}{topic}?"})


def _result(call: JsonObject, number: int, *, as_tool: bool) -> JsonObject:
    """What a tool returned; a client that writes calls as text gives it as the user."""
    if as_tool:
        return {"role": "tool", "tool_call_id": call["id"], "content": f"result {number}"}
    return {"role": "user", "content": f"Observation:\nresult {number}"}


def watched(script: Script, chats: list[list[JsonObject]]) -> Script:
    """The same run; `chats` gets its chat up to each answer."""
    prompt = next(script)
    while True:
        answer: JsonObject = yield prompt  # type: ignore[misc,assignment]
        chats.append([*prompt, answer])
        try:
            prompt = script.send(answer)  # type: ignore[attr-defined]
        except StopIteration:
            return


def reading(begin: list[JsonObject], calls: int = 3) -> Script:
    """An agent that begins with messages of others, and goes on from its own answers."""
    chat = list(begin)
    for number in range(calls):
        chat.append((yield list(chat)))  # type: ignore[misc,arg-type]
        chat.append({"role": "user", "content": f"and further {number}?"})


def fanning(question: str, workers: int) -> Script:
    """A planner whose workers begin with its history, two calls each."""
    history: list[JsonObject] = [{"role": "system", "content": "Plan."}, {"role": "user", "content": question}]
    plan: JsonObject = yield history  # type: ignore[misc,assignment]
    history = [*history, plan]
    history += [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in plan.get("tool_calls") or ()]
    for worker in range(workers):
        chat: list[JsonObject] = [*history, {"role": "user", "content": f"Do part {worker}."}]
        answer: JsonObject = yield chat  # type: ignore[misc,assignment]
        chat = [*chat, answer, {"role": "user", "content": "Go on."}]
        yield chat


def sampling(chance: random.Random, *, tools: bool) -> Callable[[list[JsonObject]], JsonObject]:
    """An engine that draws: random ids, texts out of few words."""

    def answer(prompt: list[JsonObject]) -> JsonObject:
        if not tools:
            return {"role": "assistant", "content": " ".join(chance.choices(["yes", "no", "well", "maybe"], k=6))}
        return _call(f"call_{chance.getrandbits(128):032x}", chance.randrange(5))

    return answer


def id_of_run(run: int, prompt: int) -> str:
    """The id of the call that `numbered` answers a prompt of so many messages with."""
    return f"call_{hashlib.sha256(f'{run} {prompt}'.encode()).hexdigest()[:24]}"


def numbered(run: int) -> Callable[[list[JsonObject]], JsonObject]:
    """An engine of one run, whose ids others can quote."""
    return lambda prompt: _call(id_of_run(run, len(prompt)), 1)


def greedy(*, ids: str, tools: bool) -> Callable[[list[JsonObject]], JsonObject]:
    """An engine at temperature 0: one prompt, one answer. `ids`: `digest` or `counted` ids of tool calls."""

    def answer(prompt: list[JsonObject]) -> JsonObject:
        digest = hashlib.sha256(json.dumps(prompt).encode()).hexdigest()
        if not tools:
            return {"role": "assistant", "content": ["Sure.", "Of course!", "Done."][int(digest, 16) % 3]}
        return _call(f"call_{digest[:24]}" if ids == "digest" else f"functions.look_up:{len(prompt)}", len(prompt))

    return answer


def _call(call_id: str, number: int) -> JsonObject:
    function = {"name": "look_up", "arguments": json.dumps({"at": number * 1.0, "in": "orders"})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
