"""Filters around calls: what a role's filters say of requests, tool results and answers, and what becomes of that.

A verdict is a label: feedback of the kind `flag`, by which rewards, canary and history see it, and a note of `/readyz`,
which the notifier makes an alert. A filter that fails closes or opens, as the role says.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import msgspec
import structlog

from ratchet.bus.clock import utc_now
from ratchet.core.contract import Feedback, named_id
from ratchet.core.contract.reward import FLAG as FLAGGED
from ratchet.core.errors import ConfigError, Unavailable
from ratchet.core.rules.engines import ANY_ROLE
from ratchet.core.service.problems import HttpError
from ratchet.dialects.bundles import carried
from ratchet.dialects.requests import Body, CallRequest, value_of
from ratchet.dialects.streams import DONE, chunk_of, data_of
from ratchet.gateway import metrics
from ratchet.gateway.calls import Call, RequestReader
from ratchet.gateway.engine_answers import Answered
from ratchet.gateway.engines.base import PolicyUnfit
from ratchet.gateway.filters import FILTERS
from ratchet.gateway.filters.base import BLOCK, FLAG, REPLACE, FilterFailed, Verdict, plain
from ratchet.gateway.filters.judge import Judge
from ratchet.gateway.filters.places import (
    ANSWER,
    CONVERSATIONS,
    REQUEST,
    TOOL_RESULT,
    Place,
    places_of_answer,
    places_of_request,
)
from ratchet.gateway.settings import FilterSettings

log = structlog.get_logger()

WINDOW, BEFORE = 64, 200
"""Characters of a streamed answer that are checked together, and those before them, as a reader sees them, that filters
see again: no rule of this product spans more."""
LONGEST = 4096
"""Characters that are kept to see those: tags and blanks may stand between."""
RECENT_S = 300.0
"""How long a verdict stays a note of `/readyz`."""
REASON = 200
"""Characters of a reason that labels and errors have."""
CODE, FAILED = "content_filter", "filter_failed"
"""Codes of errors: a filter blocks the call; one that fails closed gave no verdict."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one filter says of one text."""

    name: str
    place: Place
    verdict: Verdict


@dataclass
class Filtering:
    """The filters of all roles; without settings no call costs anything."""

    roles: Mapping[str, FilterSettings] = field(default_factory=dict[str, FilterSettings])
    """By role; `*` stands for every other one."""
    publish: Callable[[Feedback], None] = lambda _: None
    reader: RequestReader = field(default_factory=RequestReader)
    """Reads large bodies beside the event loop."""
    now: Callable[[], datetime] = utc_now

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a filter that is not there, or does not fit."""
        self._judges = dict[str, Judge]()
        for name in sorted({name for chosen in self.roles.values() for name in chosen.names}):
            if name not in FILTERS:
                raise ConfigError(f"no filter {name}; there are: {', '.join(FILTERS)}")
            self._judges[name] = Judge(name)
        self._recent: deque[tuple[float, str]] = deque(maxlen=1000)

    def close(self) -> None:
        """End the filters' processes."""
        for judge in self._judges.values():
            judge.close()

    async def check(self) -> str | None:
        """A note: what filters have met within the last minutes."""
        since = time.monotonic() - RECENT_S
        met = Counter(what for at, what in self._recent if at >= since)
        counts = ", ".join(f"{number} {what}" for what, number in met.most_common(5))
        return f"of the calls of the last five minutes: {counts}" if met else None

    async def request(self, call: Call) -> None:
        """Check what users and tools say. Where a filter replaces some of it, the engine gets `call.passed`.

        Raises `HttpError` for a call that is blocked.
        """
        chosen = self._chosen(call, REQUEST, TOOL_RESULT)
        if chosen is None:
            return
        members, places = await self.reader.apply(partial(_conversation, call.request), call.sent)
        findings = await self.judged(call, chosen, places)
        self.label(call, [finding for finding in findings if finding.place.is_new])
        if blocked := _blocked(findings):
            raise HttpError(400, blocked, code=CODE)
        if _write(findings):
            call.passed = await self.reader.apply(partial(_rewritten, call, members), call.sent)

    async def answer(self, call: Call, answer: Answered) -> Answered:
        """Check a whole answer; it comes back with what filters put in a text's place.

        Raises `Filtered` for one that is blocked, and what `UNREADABLE` names.
        """
        chosen = self._chosen(call, ANSWER)
        if chosen is None:
            return answer
        body: Body = answer.whole()
        findings = await self.judged(call, chosen, list(places_of_answer(body)))
        self.label(call, findings)
        if blocked := _blocked(findings):
            raise Filtered(400, blocked, code=CODE)
        if not _write(findings):
            return answer
        for holder in (*(body.get("choices") or ()), *(finding.place.holder for finding in findings)):
            if isinstance(holder, dict):  # its tokens spell what was taken out
                holder.update({name: None for name in ("logprobs", "token_ids") if name in holder})
        call.replaced, call.cache_key = True, None
        return replace(answer, raw=msgspec.json.encode(body), messages=None)

    def stream(self, call: Call) -> StreamFilter | None:
        """What checks a streamed answer; None where nothing does."""
        chosen = self._chosen(call, ANSWER)
        return None if chosen is None else StreamFilter(self, call, chosen)

    def _chosen(self, call: Call, *kinds: str) -> FilterSettings | None:
        """The settings of a call's role, where they name filters for texts of these kinds."""
        chosen = self.roles.get(call.arm.role) or self.roles.get(ANY_ROLE)
        return chosen if chosen is not None and any(map(chosen.of, kinds)) else None

    async def judged(self, call: Call, chosen: FilterSettings, places: Sequence[Place]) -> list[Finding]:
        """What the filters say. Raises `Filtered` where one fails that fails closed."""
        findings = list[Finding]()
        for name in chosen.names:
            asked = [place for place in places if name in chosen.of(place.kind)]
            if not asked:
                continue
            try:
                verdicts = await self._verdicts(name, asked)
            except FilterFailed as error:
                self._count(call, name, "failed")
                log.error("a filter failed", filter=name, role=call.arm.role, reason=str(error))
                if chosen.on_failure == "closed":
                    raise Filtered(503, f"the filter {name} failed, and this role fails closed", code=FAILED) from error
                continue
            for place, verdict in verdicts:
                action = BLOCK if verdict.action == REPLACE and place.is_fixed else verdict.action
                action = FLAG if chosen.flag_only else action
                findings.append(Finding(name, place, msgspec.structs.replace(verdict, action=action)))
        return findings

    async def _verdicts(self, name: str, asked: Sequence[Place]) -> list[tuple[Place, Verdict]]:
        """One filter's verdicts: on parts of a content together, where it replaces some, on the others together."""
        begun = time.monotonic()
        given = await self._judges[name].judge([place.text for place in asked])
        verdicts = [(place, verdict) for place, verdict in zip(asked, given, strict=True) if verdict is not None]
        replaced = {(id(place.holder), place.key) for place, verdict in verdicts if verdict.action == REPLACE}
        kept = [(place, verdict) for place, verdict in verdicts if place.without(replaced) is place]
        others = [(place, place.without(replaced)) for place, _ in verdicts]
        again = [rest for place, rest in others if rest is not place and len(rest.parts) > 1]
        if again:
            spent_s = time.monotonic() - begun
            given = await self._judges[name].judge([place.text for place in again], spent_s)
            kept += [(place, verdict) for place, verdict in zip(again, given, strict=True) if verdict is not None]
        return kept

    def label(self, call: Call, findings: Iterable[Finding]) -> None:
        """Publish one label for each filter and kind of text."""
        first = {(finding.name, finding.place.kind): finding for finding in reversed(list(findings))}
        for (name, kind), finding in sorted(first.items()):
            action, reason = finding.verdict.action, finding.verdict.reason[:REASON]
            self._count(call, name, action, f" in {kind.replace('_', ' ')}s")
            if call.arm.unrecorded:
                continue
            label = Feedback(
                feedback_id=named_id(FLAGGED, call.arm.role, call.header.turn_id, kind, name),
                trajectory_id=call.arm.trajectory_id,
                kind=FLAGGED,
                at=self.now(),
                role=call.arm.role,
                value=kind,
                user_ref=call.header.user_ref,
                source="filter",
                rater=name,
                reasoning=f"{action}: {reason}",
            )
            try:
                self.publish(label)
            except Unavailable as error:  # counted there; the verdict itself holds all the same
                log.warning("a label was not published", filter=name, reason=error.for_log)

    def _count(self, call: Call, name: str, action: str, where: str = "") -> None:
        metrics.series(metrics.FILTERED, call.arm.role, name, action).inc()
        self._recent.append((time.monotonic(), f"{name}: {action}{where}"))


class Filtered(PolicyUnfit):
    """A filter lets an answer not pass: no engine failed, and no other one is asked."""


@dataclass
class StreamFilter:
    """Checks a streamed answer in windows, each with what came before it, before the agent gets it.

    The first piece goes on as soon as it is checked; later ones are held until there are enough of them to check. What
    the agent has got cannot be taken back: a text that a filter replaces ends the stream, as one that it blocks.
    """

    filtering: Filtering
    call: Call
    chosen: FilterSettings
    _tails: dict[tuple[object, ...], str] = field(default_factory=dict[tuple[object, ...], str])
    """The last characters of each text under way, with what is held of it."""
    _held: list[bytes] = field(default_factory=list[bytes])
    _fresh: dict[tuple[object, ...], Place] = field(default_factory=dict[tuple[object, ...], Place])
    """Where text came since the last check."""
    _unchecked: int = WINDOW
    """Characters that came since; the first ones count as a whole window."""
    _labelled: set[str] = field(default_factory=set[str])

    async def passed(self, events: Sequence[bytes], *, last: bool = False) -> Sequence[bytes]:
        """The events that may be shown now, `last`: all of them. Raises `Filtered` where they end the stream, and
        `msgspec.DecodeError` for what is no chunk."""
        comments = [event for event in events if not data_of(event)]  # they only say that the engine works
        for event in events:
            if not (data := data_of(event)):
                continue
            self._held.append(event)
            for place in places_of_answer(chunk_of(data)) if data != DONE else ():
                self._tails[place.path] = self._tails.get(place.path, "") + place.text
                self._fresh[place.path] = place
                self._unchecked += len(place.text)
        if self._fresh and (last or self._unchecked >= WINDOW):
            await self._check()
        shown, self._held = ([], self._held) if self._fresh else (self._held, [])
        return [*comments, *shown]

    async def _check(self) -> None:
        places = [replace(place, text=self._tails[path], is_fixed=True) for path, place in self._fresh.items()]
        self._tails |= {path: tail(self._tails[path]) for path in self._fresh}
        self._fresh, self._unchecked = {}, 0
        findings = await self.filtering.judged(self.call, self.chosen, places)
        self.filtering.label(self.call, [finding for finding in findings if finding.name not in self._labelled])
        self._labelled |= {finding.name for finding in findings}
        if blocked := _blocked(findings):
            raise Filtered(400, blocked, code=CODE)


def tail(text: str) -> str:
    """The end of a text in which the last `BEFORE` characters stand that a reader sees."""
    text = text[-LONGEST:]
    seen, length = plain(text)[-BEFORE:], WINDOW + BEFORE
    while not plain(text[-length:]).endswith(seen):
        length *= 2
    return text[-length:]


def _conversation(request: CallRequest, _: bytes) -> tuple[Body, list[Place]]:
    """The members of a request that hold the conversation, decoded anew, and the texts in them."""
    members = {name: value_of(request.fields, name) for name in CONVERSATIONS if name in request.fields}
    return members, [*places_of_request(members)]


def _rewritten(call: Call, members: Body, _: bytes) -> CallRequest:
    written = {name: msgspec.Raw(msgspec.json.encode(spoken)) for name, spoken in members.items()}
    return carried(call.dialect, call.request, call.dialect.read({**call.request.fields, **written}))


def _blocked(findings: Iterable[Finding]) -> str | None:
    """Why the call is refused, if it is."""
    finding = next((finding for finding in findings if finding.verdict.action == BLOCK), None)
    if finding is None:
        return None
    kind = finding.place.kind.replace("_", " ")
    return f"the filter {finding.name} blocked this {kind}: {finding.verdict.reason[:REASON]}"


def _write(findings: Sequence[Finding]) -> bool:
    """Put replacements in their places, of several for one text the first filter's, and what stands for several parts
    last; False where there are none."""
    replaced = [finding for finding in reversed(findings) if finding.verdict.action == REPLACE]
    for finding in sorted(replaced, key=lambda finding: bool(finding.place.parts)):
        finding.place.write(finding.verdict.replacement)
    for finding in replaced:  # then no other text is written by its number
        finding.place.drop_empty()
    return bool(replaced)
