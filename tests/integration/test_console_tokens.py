"""The console's tokens on the real ClickHouse: by the learner's own rules, with the policy's own tokenizer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer, models

from ratchet.console.tokens import PINNED_NOTE, RETRIED_NOTE
from ratchet.core.contract import PolicyClaim, Turn
from ratchet.core.contract.policy_manifest import ArtifactFile, PolicyManifest
from ratchet.core.contract.turn import PromptTokens, Trainable
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.policies import publish_policy
from ratchet.core.stores.warehouse import Warehouse
from tests.support.blobs import MemoryBlobs
from tests.support.console_data import console, store
from tests.support.messages import AT, turn
from tests.support.running import prepared_warehouse

WORDS = ["<script>", "hello", "world", "\u202e"]


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def policy(objects: MemoryBlobs, *, as_document: bool) -> PolicyClaim:
    """A policy in the store, whose manifest names a tokenizer of four words."""
    whole: Any = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    ref = objects.put(whole.to_str().encode(), "blobs")
    file = ArtifactFile(name="tokenizer.json", uri=ref.uri, sha256=ref.sha256, size=ref.size)
    manifest = PolicyManifest(
        kind="adapter",
        base_model="x",
        files=[] if as_document else [file],
        documents=[file] if as_document else [],
        role="support",
        created_at=AT,
    )
    digest = publish_policy(objects, manifest).digest
    return PolicyClaim(role="support", version=1, digest=digest, arm="stable", weight=0.0)


def drawn(name: str = "one", index: int = 0, **changes: Any) -> Turn:
    """A call with tokens that policy gradients may learn from."""
    tokens = {
        "prompt_token_ids": PromptTokens(suffix=[9, 9, index]),
        "output_token_ids": [1, 2, 0, 3],
        "behavior_logprobs": [-0.5, -1.0, -2.0, 0.0],
        "trainable": Trainable(ok=True),
    }
    return turn(name, index, **{**tokens, **changes})


@pytest.mark.parametrize("as_document", [True, False])
async def test_tokens_show_text_log_probability_and_that_they_learn(warehouse: Warehouse, as_document: bool) -> None:
    objects = MemoryBlobs()
    call = drawn(policy=policy(objects, as_document=as_document))
    await store(warehouse, call)
    async with console(warehouse, objects=objects) as http:
        answer = (await http.get(f"/v1/calls/{call.turn_id}/tokens")).json()
        assert [token["id"] for token in answer["tokens"]] == [1, 2, 0, 3]
        assert [token["logprob"] for token in answer["tokens"]] == [-0.5, -1.0, -2.0, 0.0]
        assert [token["text"].strip() for token in answer["tokens"]] == ["hello", "world", "<script>", "\u202e"]
        assert (answer["decoded"], answer["note"], answer["total"]) == (True, None, 4)
        assert all(token["learns"] for token in answer["tokens"])
        rest = (await http.get(f"/v1/calls/{call.turn_id}/tokens", params={"offset": 3})).json()
        assert [token["id"] for token in rest["tokens"]] == [3]
        beyond = (await http.get(f"/v1/calls/{call.turn_id}/tokens", params={"offset": 99})).json()
        assert (beyond["tokens"], beyond["total"]) == ([], 4)


async def test_tokens_say_why_none_of_them_learns(warehouse: Warehouse) -> None:
    pinned = PolicyClaim(role="support", version=1, digest="a" * 64, arm="pinned", weight=0.0)
    retried = [drawn("retried", attempt=n, turn_id=f"0000000{n}-0000-4000-8000-000000000000") for n in (1, 2)]
    greedy = drawn("greedy", trainable=Trainable(ok=False, reason="greedy"))
    orphan = drawn("orphan", 1, prompt_token_ids=PromptTokens(suffix=[1], prefix_length=3, prefix_digest="0" * 64))
    evaluated = drawn("evaluated", policy=pinned)
    bare = turn("bare")
    await store(warehouse, *retried, greedy, orphan, evaluated, bare)
    async with console(warehouse, objects=MemoryBlobs()) as http:
        for call, note in (
            (retried[0], RETRIED_NOTE),
            (retried[1], None),
            (greedy, "The temperature was 0: the answer was not drawn."),
            (orphan, "The prompt builds on a call that was not recorded with its tokens."),
            (evaluated, PINNED_NOTE),
        ):
            answer = (await http.get(f"/v1/calls/{call.turn_id}/tokens")).json()
            assert answer["note"] == note
            assert {token["learns"] for token in answer["tokens"]} == {note is None}
            assert (answer["decoded"], answer["tokens"][0]["text"]) == (False, "")
        for missing in (bare.turn_id, "x", "' OR 1=1"):
            refused = await http.get(f"/v1/calls/{missing}/tokens")
            assert refused.status_code == 404, missing
            assert "\n" not in refused.json()["error"]["message"]


async def test_a_long_answer_comes_in_parts(warehouse: Warehouse) -> None:
    call = drawn(output_token_ids=[1] * 100_000, behavior_logprobs=[-0.1] * 100_000)
    assert len(msgspec.json.encode(call)) > 500_000
    await store(warehouse, call)
    async with console(warehouse, objects=MemoryBlobs()) as http:
        answer = (await http.get(f"/v1/calls/{call.turn_id}/tokens", params={"offset": 99_000})).json()
        assert (len(answer["tokens"]), answer["total"], answer["offset"]) == (1_000, 100_000, 99_000)
        first = (await http.get(f"/v1/calls/{call.turn_id}/tokens")).json()
        assert len(first["tokens"]) == 2_000
