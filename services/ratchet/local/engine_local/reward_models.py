"""Scores of conversations by reward models, which are named by the sha256 of their manifest.

One thread loads and computes, beside the one that writes answers: a score is one forward pass, and a model that is slow
holds up no policy.
"""

# ruff: noqa: N806 - names of tensors end in their shape

from __future__ import annotations

import asyncio
import math
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.conversations import Conversation
from ratchet.core.chat_templates.encoder import ChatEncoder
from ratchet.core.contract.policy_manifest import REWARD_MODEL
from ratchet.core.errors import BadRequest, NotFound, Rejected
from ratchet.core.service.asgi import Request, Response, json_response
from ratchet.core.service.problems import HttpError
from ratchet.core.stores.failed_names import FailedNames
from ratchet.core.stores.policies import BlobStore, fetch_files, find_reward_model, ranks_of, tokenizer_digest
from ratchet.local.engine_local.domain.requests import ScoreCall, read_score
from ratchet.local.engine_local.resolving import not_loaded, unknown_model
from ratchet.local.engine_local.s3_policies import Base, base_of
from ratchet.local.engine_local.settings import THREADS
from ratchet.local.engine_local.torch_policies import dtype_of
from ratchet.local.engine_local.transformers_text import refusing

KEPT = 2
"""Reward models in memory: that of a role, and the one that follows it."""
MOST_WAITING = 64
"""Conversations that wait or are scored."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward model says of a conversation."""

    value: float
    """The reward itself: no bounds, and only differences mean anything."""
    tokens: int

    @property
    def share(self) -> float:
        """The chance that it is preferred to a conversation with reward 0 (Bradley and Terry), 0..1."""
        return 0.5 * (1 + math.tanh(self.value / 2))


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A reward model in memory. `Any`: classes of transformers carry no usable types."""

    model: Any
    tokenizer: Any

    @torch.inference_mode()
    def score(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> Score:
        """Of a conversation, read whole at its last token. Raises `BadRequest` for one that it cannot read."""
        ids = self._read(messages, tools)
        backbone = getattr(self.model, self.model.base_model_prefix)
        hidden_1TH = backbone(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
        value = float(self.model.score(hidden_1TH[0, -1].float()))
        if not math.isfinite(value):
            raise Rejected("the reward model gives NaN or an infinite reward")
        return Score(value, len(ids))

    def _read(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> list[int]:
        """Token ids up to the last one that is no padding, where the trainer and transformers read a reward too."""
        most = int(self.model.config.get_text_config().max_position_embeddings)
        encoder = ChatEncoder(self.tokenizer, most)
        rows = list(encoder.rows([Conversation("", messages, tools)]))
        counts = encoder.counts
        if counts.truncated:
            raise BadRequest(f"the conversation has {counts.longest} tokens, and the model reads {most}")
        if not rows:
            raise BadRequest("; ".join(counts.unrenderable) or "the conversation holds no answer")
        pad = self.tokenizer.eos_token_id if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id
        ids = rows[-1].token_ids
        end = next((place + 1 for place in reversed(range(len(ids))) if ids[place] != pad), len(ids))
        return ids[:end]


class RewardModels:
    """The reward models that are asked for, loaded when they first are. Runs on one event loop."""

    def __init__(self, objects: BlobStore, cache: Path, now: Callable[[], datetime]) -> None:
        self._objects = objects
        self._cache = cache
        self._now = now
        self._kept: OrderedDict[str, RewardModel] = OrderedDict()
        self._failed = FailedNames()
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "rewards", initializer=torch.set_num_threads, initargs=(THREADS,))

    async def classify(self, request: Request) -> Response:
        """`POST /classify`: how good a conversation is, as vLLM gives the classes of a chat."""
        call = read_score(request.json_object())
        if self._waiting >= MOST_WAITING:
            raise HttpError(429, "too many conversations wait", kind="rate_limit_error", code="engine_full")
        self._waiting += 1
        try:
            score = await asyncio.get_running_loop().run_in_executor(self._thread, self._score, call)
        finally:
            self._waiting -= 1
        return json_response(
            {
                "id": f"classify-{uuid.uuid4().hex}",
                "object": "list",
                "created": int(self._now().timestamp()),
                "model": call.model,
                "data": [{"index": 0, "label": None, "probs": [score.share], "num_classes": 1}],
                "usage": {"prompt_tokens": score.tokens, "completion_tokens": 0, "total_tokens": score.tokens},
            }
        )

    def close(self) -> None:
        """Forget what waits, and wait for what is computed."""
        self._thread.shutdown(cancel_futures=True)

    def _score(self, call: ScoreCall) -> Score:
        """Raises `HttpError` 404 and `POLICY_REFUSED` as for policies, `Unavailable`, and `BadRequest`."""
        name = call.model
        if name not in self._kept:
            self._failed.raise_remembered(name)
            try:
                self._kept[name] = self._load(name)
            except Exception as error:
                failure = error if isinstance(error, HttpError) else not_loaded(name, error)
                if isinstance(failure, HttpError):
                    self._failed.remember(name, failure)
                raise failure from error
        self._kept.move_to_end(name)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[name].score(call.messages, call.tools)

    def _load(self, digest: str) -> RewardModel:
        try:
            policy = find_reward_model(self._objects, digest)
        except NotFound as error:
            raise unknown_model(digest) from error
        local = fetch_files(self._objects, policy, self._cache)
        manifest, directory = local.policy.manifest, local.directory
        base = base_of(self._objects, self._cache, manifest) if manifest.has_adapter else Base(digest, directory)
        if manifest.tokenizer_digest not in (None, tokenizer_digest(base.directory)):
            raise Rejected(f"the {REWARD_MODEL} was trained with another tokenizer or chat template than its base has")
        with refusing("load the reward model"):
            tokenizer: Any = AutoTokenizer.from_pretrained(base.directory, local_files_only=True)
            model: Any = AutoModelForSequenceClassification.from_pretrained(
                base.directory, num_labels=1, local_files_only=True, dtype=dtype_of(manifest.dtype)
            )
            if manifest.has_adapter:
                ranks_of(directory)
                model = PeftModel.from_pretrained(model, str(directory)).merge_and_unload()
            model.score.float()
        return RewardModel(model.eval().requires_grad_(requires_grad=False), tokenizer)
