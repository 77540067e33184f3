"""The tokens of a call's answer: their log-probabilities, which of them bear a loss, and their texts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.bus.message import decode as decode_message
from ratchet.core.contract import Turn
from ratchet.core.contract.http.console import TokenOut, TokensOut
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.datasets.domain.rows import calls_of
from ratchet.core.datasets.domain.selection import LEFT_OUT_ARMS, is_left_out
from ratchet.core.datasets.domain.sequences import thrown_away
from ratchet.core.errors import NotFound, RatchetError
from ratchet.core.rules.arms import PINNED
from ratchet.core.rules.capture import Reason, advice_of
from ratchet.core.stores.history import History
from ratchet.core.stores.policies import BlobStore, find_policy, is_manifest_uri, read_policy

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Warehouse

PAGE = 2_000
RUN_BYTES = 16 * 1024 * 1024
"""Of the calls of a run: more are not read together, and a call is then shown by itself."""
AT_ONCE = 2
"""Runs that are read at the same time: token ids take many times their bytes in memory."""
TOKENIZER = "tokenizer.json"
TOKENIZER_BYTES = 64 * 1024 * 1024
TOKENIZERS = 4
"""Tokenizers that stay in memory."""
PINNED_NOTE = "Evaluation traffic: some call of this trajectory asked for a version by name."
RETRIED_NOTE = "A retry took this call's place, and no later call saw its answer."
ALONE_NOTE = "The run is too large to be read here: whether the call continues the one before it was not checked."

_OF_CALL = "SELECT role, trajectory_id FROM turns WHERE event_id = {id:String} LIMIT 1"
_BYTES = "SELECT sum(length(body)) AS bytes FROM turns WHERE role = {role:String} AND trajectory_id = {run:String}"
_ALONE = "SELECT body FROM turns WHERE role = {role:String} AND trajectory_id = {run:String} AND event_id = {id:String}"

Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""


class Tokens:
    """Reads the calls of one run, and the tokenizers of policies."""

    def __init__(self, warehouse: Warehouse, objects: BlobStore) -> None:
        self._warehouse = warehouse
        self._tokenizers = Tokenizers(objects)
        self._reading = asyncio.Semaphore(AT_ONCE)

    async def get(self, turn_id: str, offset: int) -> TokensOut:
        """Tokens of a call's answer, from `offset` on. Raises `NotFound`, also for a call without tokens."""
        rows = await self._warehouse.rows(_OF_CALL, {"id": turn_id})
        if not rows:
            raise NotFound(f"no call {turn_id} is stored")
        async with self._reading:
            turns, is_alone = await self._turns(rows[0]["role"], rows[0]["trajectory_id"], turn_id)
            return await asyncio.to_thread(self._shown, turns, turn_id, offset, is_alone)

    async def _turns(self, role: str, run: str, turn_id: str) -> tuple[list[Turn], bool]:
        (size,) = await self._warehouse.rows(_BYTES, {"role": role, "run": run})
        if size["bytes"] <= RUN_BYTES:
            return await History(self._warehouse).messages("turns", Turn, role, [run]), False
        rows = await self._warehouse.rows(_ALONE, {"role": role, "run": run, "id": turn_id})
        return [decode_message(row["body"], Turn) for row in rows[:1]], True

    def _shown(self, turns: Sequence[Turn], turn_id: str, offset: int, is_alone: bool) -> TokensOut:
        turn = next((turn for turn in turns if turn.turn_id == turn_id), None)
        if turn is None:  # erased meanwhile
            raise NotFound(f"no call {turn_id} is stored")
        ids = turn.output_token_ids
        if ids is None:
            raise NotFound(f"call {turn_id} has no token ids: {advice_of(Reason.NO_TOKEN_IDS).meaning}")
        why_not = why_it_teaches_nothing(turns, turn_id)
        logprobs = turn.behavior_logprobs or []
        known = logprobs if len(logprobs) == len(ids) else [None] * len(ids)
        decode = self._tokenizers.of(turn)
        end = min(offset + PAGE, len(ids))
        return TokensOut(
            turn_id=turn_id,
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
