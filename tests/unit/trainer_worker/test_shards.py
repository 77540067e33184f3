"""Each of several ranks holds its share of the layers, and all of what learns; tried on one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, strategies as st
from msgspec.structs import replace
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from ratchet.core.errors import Rejected
from ratchet.trainer_worker.training.policy import load_policy
from ratchet.trainer_worker.training.ranks import Ranks
from ratchet.trainer_worker.training.shards import (
    GATHERED_LAYERS,
    gathered_bytes,
    held_bytes,
    rank_mesh,
    share_layers,
    shares_layers,
)
from tests.support.tiny_models import tiny_configs, write_tiny_model
from tests.support.trainer_runs import job_spec

CPU = torch.device("cpu")


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """The first of three, without the others: cutting needs no answers."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
    yield Ranks(0, 3)
    dist.destroy_process_group()


def adapted(family: str) -> Any:
    base = AutoModelForCausalLM.from_config(tiny_configs(64)[family])
    transposed = family == "gpt2"
    config = LoraConfig(r=2, target_modules="all-linear", fan_in_fan_out=transposed, task_type="CAUSAL_LM")
    return get_peft_model(base, config)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "mistral", "gpt2"])
def test_a_rank_holds_its_share_of_the_layers_and_all_that_learns(family: str, ranks: Ranks) -> None:
    model = adapted(family)
    trunk: nn.Module = model.get_base_model().get_decoder()
    total = held_bytes(model.parameters())
    frozen = [one for name, one in trunk.named_parameters() if "layers." in name or "h." in name]
    layers = held_bytes(one for one in frozen if not one.requires_grad)
    learns = {name: one.detach().clone() for name, one in model.named_parameters() if one.requires_grad}
    assert layers > 0.3 * total
    assert not shares_layers(trunk)

    share_layers(model, rank_mesh(ranks, CPU))

    assert shares_layers(trunk)
    # What has fewer or other rows than there are ranks is cut unevenly, with at most a row too much.
    assert held_bytes(model.parameters()) == pytest.approx(total - layers * 2 / 3, rel=0.05)
    of_layer = (layers + held_bytes(one for one in frozen if one.requires_grad)) / 2
    assert gathered_bytes(trunk) == GATHERED_LAYERS * of_layer
    for name, one in model.named_parameters():
        if one.requires_grad:
            assert torch.equal(one, learns.pop(name))
    assert not learns


@pytest.mark.parametrize("algorithm", ["sft", "reward_model"])
def test_a_job_that_shares_is_loaded_in_shares_and_another_whole(algorithm: str, tmp_path: Path) -> None:
    base = write_tiny_model(tmp_path, ["a b c"])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        spec = job_spec(algorithm, str(base))
        models: list[Any] = [load_policy(replace(spec, sharded=sharded)).model for sharded in (False, True)]
    finally:
        dist.destroy_process_group()
    assert [shares_layers(model.get_base_model().get_decoder()) for model in models] == [False, True]


def test_a_model_whose_layers_are_unknown_is_refused(ranks: Ranks) -> None:
    class Plain(nn.Module):
        def get_decoder(self) -> nn.Module:
            return nn.Linear(2, 2)

    with pytest.raises(Rejected, match="the weights of a Linear cannot be shared by ranks"):
        share_layers(Plain(), rank_mesh(ranks, CPU))


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 5))
def test_rounds_have_every_piece_once_and_pieces_of_like_length_together(costs: list[int], count: int) -> None:
    of_ranks = [Ranks(index, count).rounds(costs) for index in range(count)]
    together = list(zip(*of_ranks, strict=True))
    done = [piece for round_ in together for piece in round_ if piece is not None]
    assert sorted(done) == list(range(len(costs)))
    assert [costs[piece] for piece in done] == sorted(costs, reverse=True)
    assert sum(piece is None for round_ in together for piece in round_) < count
