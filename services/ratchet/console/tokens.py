"""The tokens of a call's answer: their log-probabilities, which of them bear a loss, and their texts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ratchet.console.calls import Calls
from ratchet.core.contract import Turn
from ratchet.core.contract.http.console import TokenOut, TokensOut
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.datasets.domain.rows import calls_of
from ratchet.core.datasets.domain.selection import LEFT_OUT_ARMS, is_left_out
from ratchet.core.datasets.domain.sequences import thrown_away
from ratchet.core.errors import NotFound, RatchetError
from ratchet.core.rules.access import RoleSet
from ratchet.core.rules.arms import PINNED
from ratchet.core.rules.capture import Reason, advice_of
from ratchet.core.stores.policies import BlobStore, find_policy, is_manifest_uri, read_policy

PAGE = 2_000
TOKENIZER = "tokenizer.json"
TOKENIZER_BYTES = 64 * 1024 * 1024
TOKENIZERS = 4
"""Tokenizers that stay in memory."""
PINNED_NOTE = "Evaluation traffic: some call of this trajectory asked for a version by name."
RETRIED_NOTE = "A retry took this call's place, and no later call saw its answer."
ALONE_NOTE = "The run is too large to be read here: whether the call continues the one before it was not checked."

Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""


class Tokens:
    """Reads the answers of calls, and the tokenizers of policies."""

    def __init__(self, calls: Calls, objects: BlobStore) -> None:
        self._calls = calls
        self._tokenizers = Tokenizers(objects)

    async def get(self, turn_id: str, offset: int, roles: RoleSet) -> TokensOut:
        """Tokens of a call's answer, from `offset` on. Raises `NotFound`, also for a call without tokens, or of none of
        the `roles`."""
        return await self._calls.shown(turn_id, partial(self._shown, offset), roles)

    def _shown(self, offset: int, turn: Turn, turns: Sequence[Turn], is_alone: bool) -> TokensOut:
        ids = turn.output_token_ids
        if ids is None:
            raise NotFound(f"call {turn.turn_id} has no token ids: {advice_of(Reason.NO_TOKEN_IDS).meaning}")
        why_not = why_it_teaches_nothing(turns, turn.turn_id)
        logprobs = turn.behavior_logprobs or []
        known = logprobs if len(logprobs) == len(ids) else [None] * len(ids)
        decode = self._tokenizers.of(turn)
        end = min(offset + PAGE, len(ids))
        return TokensOut(
            turn_id=turn.turn_id,
            tokens=[
                TokenOut(
                    text=text_at(ids, place, decode) if decode else "",
                    id=ids[place],
                    logprob=known[place],
                    learns=why_not is None,
                )
                for place in range(offset, end)
            ],
            offset=offset,
            total=len(ids),
            decoded=decode is not None,
            note=why_not or (ALONE_NOTE if is_alone else None),
        )


def why_it_teaches_nothing(turns: Sequence[Turn], turn_id: str) -> str | None:
    """Why a snapshot's learner gives no loss to a call of this run; None when all tokens of its answer bear one."""
    if is_left_out(turns):
        arms = {turn.policy.arm for turn in turns} & LEFT_OUT_ARMS
        return PINNED_NOTE if PINNED in arms else advice_of(Reason.MIXED).meaning
    calls = calls_of(turns, frozenset(turn.turn_id for turn in turns))
    place = next((index for index, call in enumerate(calls) if call.facts.turn_id == turn_id), None)
    if place is None:
        return advice_of(Reason.UNKNOWN).meaning
    if not calls[place].facts.trainable:
        return advice_of(calls[place].facts.reason or Reason.UNKNOWN).meaning
    return RETRIED_NOTE if place in thrown_away(calls) else None


def text_at(ids: Sequence[int], place: int, decode: Decode) -> str:
    """The text that a token adds to the one before it: by itself it may lack the blank before its word."""
    if place == 0:
        return decode(ids[:1])
    before, both = decode(ids[place - 1 : place]), decode(ids[place - 1 : place + 1])
    return both[len(before) :] if both.startswith(before) else decode(ids[place : place + 1])


class Tokenizers:
    """Tokenizers of policies, from the object store by their manifests; the newest few stay in memory."""

    def __init__(self, objects: BlobStore) -> None:
        self._objects = objects
        self._kept: dict[str, Decode | None] = {}
        self._lock = threading.Lock()

    def of(self, turn: Turn) -> Decode | None:
        """The tokenizer of the policy that answered; None where it cannot be had. Blocking."""
        name = f"{turn.policy.role}@{turn.policy.version}-{turn.policy.digest[:8]}"
        with self._lock:  # several threads ask; one tokenizer at a time is read
            if name not in self._kept:
                try:
                    decode = self._load(find_policy(self._objects, name).manifest)
                except NotFound:
                    decode = None  # of a provider, or collected since
                except RatchetError:
                    return None  # the store is away: asked again next time
                while len(self._kept) >= TOKENIZERS:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[name] = decode
            return self._kept[name]

    def _load(self, manifest: PolicyManifest) -> Decode | None:
        files = [*manifest.files, *manifest.documents]
        file = next((file for file in files if file.name == TOKENIZER and file.size <= TOKENIZER_BYTES), None)
        if file is not None:
            return decoder_of(self._objects.get(file.uri, file.sha256))
        if is_manifest_uri(manifest.base_model):
            return self._load(read_policy(self._objects, manifest.base_model, manifest.base_digest).manifest)
        return None


def decoder_of(tokenizer: bytes) -> Decode | None:
    """What decodes with a `tokenizer.json`; None without the package `tokenizers`, or for a file that is none."""
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra: a console without it shows ids alone
    except ImportError:
        return None
    # `Any`: the package has no types.
    kind: Any = Tokenizer
    try:
        loaded: Any = kind.from_str(tokenizer.decode())
    except Exception:  # noqa: BLE001 - it raises nothing narrower for whatever stands in the file
        return None

    def decode(ids: Sequence[int]) -> str:
        try:
            return str(loaded.decode(list(ids), skip_special_tokens=False))
        except (OverflowError, TypeError):  # an id that is none
            return ""

    return decode
