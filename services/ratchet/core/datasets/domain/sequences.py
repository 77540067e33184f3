"""The model calls of a trajectory as sequences in which each token stands once, and calls as spans of them; and back.

A call whose prompt begins with all of a sequence extends it (the longest such sequence wins), so an ordinary
conversation is one sequence. Any drift, such as a re-rendered history or a sub-conversation, starts another, which
keeps only what it does not share with an earlier one. Size and reading time follow the distinct tokens, not the calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from ratchet.core.contract.snapshot import Call, CallSpan, TokenSequence, TrajectoryRow
from ratchet.core.errors import Rejected

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Parts = tuple[Ids, ...]
"""A sequence of tokens in pieces, which are views of one array."""

LARGEST_ID = 2**31 - 1
"""Token ids are stored as 32-bit integers."""
ROUNDING = 1e-3
"""Nats by which an engine's log-probability may lie above 0."""
LEAST_SHARED = 16
"""Fewer tokens in common with another sequence are stored again."""
PARENTS = 32
"""The newest sequences, in which a new one looks for what it has in common: the work stays linear."""


def ids_of(values: ArrayLike) -> Ids:
    """Token ids as 32-bit integers. Raises `OverflowError` for a number that is none."""
    ids = np.asarray(values, dtype=np.int64)
    if ids.size and (ids.min() < 0 or ids.max() > LARGEST_ID):
        raise OverflowError("a token id lies outside 0 to 2147483647")
    return ids.astype(np.int32)


def digest_of(ids: Ids) -> str:
    """`rules.recorded.ids_digest` of an array."""
    return hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()


def is_possible(logprobs: Floats) -> bool:
    """Whether these can be log-probabilities: finite, and not above 0 by more than an engine's rounding."""
    return bool(np.isfinite(logprobs).all() and (logprobs <= ROUNDING).all())


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One model call with its whole prompt."""

    prompt: Ids
    """Empty where it is not known."""
    output: Ids
    logprobs: Floats
    facts: CallSpan
    """Everything but its place and size."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Calls as a row of a snapshot holds them."""

    token_ids: Ids
    logprobs: Floats
    sequences: list[TokenSequence]
    spans: list[CallSpan]


def pack(calls: Sequence[LoggedCall]) -> Packed:
    """The sequences of calls that are in their order."""
    dropped = thrown_away(calls)
    growing: list[_Growing] = []
    spans = [call.facts for call in calls]
    for index in sorted(range(len(calls)), key=lambda index: (index in dropped, index)):
        call = calls[index]
        if not len(call.prompt):
            continue
        fitting = [place for place, sequence in enumerate(growing) if _begins(call.prompt, sequence.token_ids)]
        if index in dropped or not fitting:
            number = len(growing)
            growing.append(_Growing(growing, np.concatenate((call.prompt, call.output))))
        else:
            number = max(fitting, key=lambda place: len(growing[place].token_ids))  # the first of equally long ones
            growing[number].token_ids = np.concatenate((call.prompt, call.output))
        spans[index] = replace(
            call.facts,
            sequence=number,
            begin=len(call.prompt),
            size=len(call.output),
            scored=0 < len(call.output) == len(call.logprobs),
            dropped=index in dropped,
        )
    scored = [call.logprobs for call, span in zip(calls, spans, strict=True) if span.scored]
    own = [sequence.token_ids[sequence.shared :] for sequence in growing]
    return Packed(
        token_ids=np.concatenate([np.empty(0, np.int32), *own]),
        logprobs=np.concatenate([np.empty(0, np.float32), *scored]),
        sequences=[
            TokenSequence(size=len(ids), parent=sequence.parent, shared=sequence.shared)
            for ids, sequence in zip(own, growing, strict=True)
        ],
        spans=spans,
    )


def thrown_away(calls: Sequence[LoggedCall]) -> frozenset[int]:
    """Indices of calls that were retried and whose answer was not read.

    Of several calls with the same prompt, the one that a later prompt continues was used, else the last one.
    """
    same: dict[bytes, list[int]] = {}
    for index, call in enumerate(calls):
        if len(call.prompt):
            same.setdefault(call.prompt.tobytes(), []).append(index)
    retried = [indices for indices in same.values() if len(indices) > 1]

    def is_continued(index: int) -> bool:
        whole = np.concatenate((calls[index].prompt, calls[index].output))
        return any(_begins(later.prompt, whole) for later in calls[index + 1 :])

    return frozenset(
        index
        for indices in retried
        for used in [next(filter(is_continued, reversed(indices)), indices[-1])]
        for index in indices
        if index != used
    )


def packed(row: TrajectoryRow) -> TrajectoryRow:
    """The row as snapshots hold it and learners read it, from complete calls; the way back is `unpacked`.

    Raises `OverflowError` for a token id that takes more than 32 bits.
    """
    made = pack([_logged(call) for call in row.calls])
    lists = {"token_ids": made.token_ids.tolist(), "logprobs": made.logprobs.tolist()}
    return replace(row, calls=[], sequences=made.sequences, spans=made.spans, **lists)


def unpacked(row: TrajectoryRow) -> TrajectoryRow:
    """The row with complete calls, each with its whole prompt. Raises `Rejected`."""
    if not row.spans:
        return row
    sequences = [np.concatenate(parts) for parts in sequences_of(row)]
    calls = [
        Call(
            turn_id=span.turn_id,
            prompt_token_ids=[] if span.sequence is None else sequences[span.sequence][: span.begin].tolist(),
            output_token_ids=[] if span.sequence is None else answer_of(sequences[span.sequence], span).tolist(),
            behavior_logprobs=logprobs.tolist(),
            temperature=span.temperature,
            policy_version=span.policy_version,
            policy_digest=span.policy_digest,
            constraint=span.constraint,
            trainable=span.trainable,
            reason=span.reason,
        )
        for span, logprobs in scored_spans(row)
    ]
    return replace(row, calls=calls, token_ids=[], logprobs=[], sequences=[], spans=[])


def sequences_of(row: TrajectoryRow) -> list[Parts]:
    """The tokens of every sequence. Raises `Rejected` for a row whose members contradict each other."""
    ids = np.asarray(row.token_ids, dtype=np.int32)
    made: list[Parts] = []
    begin = 0
    for sequence in row.sequences:
        if sequence.parent is not None and not 0 <= sequence.parent < len(made):
            raise _contradiction(row, f"sequence {len(made)} begins like sequence {sequence.parent}")
        inherited = () if sequence.parent is None else cut(made[sequence.parent], sequence.shared)
        own = ids[begin : begin + sequence.size]
        made.append((*inherited, own))
        begin += sequence.size
        if sum(map(len, made[-1])) != sequence.shared + sequence.size:
            raise _contradiction(row, f"sequence {len(made) - 1} lacks tokens")
    return made


def scored_spans(row: TrajectoryRow) -> Iterator[tuple[CallSpan, Floats]]:
    """The calls with the log-probabilities of their answers, none where they are not known. Raises `Rejected`."""
    logprobs = np.asarray(row.logprobs, dtype=np.float32)
    sizes = [sequence.shared + sequence.size for sequence in row.sequences]
    begin = 0
    for span in row.spans:
        own = logprobs[begin : begin + span.size] if span.scored else logprobs[:0]
        begin += len(own)
        if span.sequence is not None and not 0 <= span.sequence < len(sizes):
            raise _contradiction(row, f"call {span.turn_id} is of sequence {span.sequence}")
        end = 0 if span.sequence is None else sizes[span.sequence]
        if min(span.begin, span.size) < 0 or span.begin + span.size > end:
            raise _contradiction(row, f"call {span.turn_id} ends after its sequence")
        if span.scored and len(own) != span.size:
            raise _contradiction(row, f"call {span.turn_id} lacks log-probabilities")
        yield span, own


def answer_of(sequence: Ids, span: CallSpan) -> Ids:
    """The tokens that a call answered with."""
    return sequence[span.begin : span.begin + span.size]


def cut(parts: Iterable[Ids], length: int) -> Parts:
    """The first `length` tokens."""
    kept: list[Ids] = []
    for part in parts:
        if length <= 0:
            break
        kept.append(part[:length])
        length -= len(part)
    return tuple(kept)


def common(one: Ids, other: Ids) -> int:
    """Length of the longest common beginning."""
    size = min(len(one), len(other))
    differs = one[:size] != other[:size]
    return int(differs.argmax()) if differs.any() else size


def _contradiction(row: TrajectoryRow, why: str) -> Rejected:
    return Rejected(f"trajectory {row.trajectory_id} contradicts itself: {why}")


class _Growing:
    """A sequence while calls are added to it. What it shares with its parent never changes."""

    def __init__(self, earlier: Sequence[_Growing], token_ids: Ids) -> None:
        self.token_ids = token_ids
        self.parent: int | None = None
        self.shared = 0
        for number in range(max(0, len(earlier) - PARENTS), len(earlier)):
            shared = common(earlier[number].token_ids, token_ids)
            if shared >= max(LEAST_SHARED, self.shared + 1):
                self.parent, self.shared = number, shared


def _begins(ids: Ids, beginning: Ids) -> bool:
    """Whether `ids` begin with all of `beginning`."""
    size = len(beginning)
    if size > len(ids) or (size and ids[size - 1] != beginning[-1]):  # most sequences differ in their last token
        return False
    return np.array_equal(ids[:size], beginning)


def _logged(call: Call) -> LoggedCall:
    facts = CallSpan(
        turn_id=call.turn_id,
        temperature=call.temperature,
        policy_version=call.policy_version,
        policy_digest=call.policy_digest,
        constraint=call.constraint,
        trainable=call.trainable,
        reason=call.reason,
    )
    logprobs = np.asarray(call.behavior_logprobs, dtype=np.float32)
    return LoggedCall(ids_of(call.prompt_token_ids), ids_of(call.output_token_ids), logprobs, facts)
