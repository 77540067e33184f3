"""Log-probabilities with their gradient fused into the forward pass are those that autograd makes of the plain way."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ratchet.core.grammars.walk import allowed
from ratchet.trainer_worker.training.learner.fused_head import LinearHead, fused_scores
from ratchet.trainer_worker.training.learner.head import Head
from ratchet.trainer_worker.training.learner.targets import Targets

TOKENS, HIDDEN, VOCABULARY = 11, 8, 40
ONE_CHUNK, CHUNKS = 1 << 20, 4 * VOCABULARY
"""Elements: of all tokens at once, and of four at a time."""


def linear(*, learns: bool, bias: bool = False, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(HIDDEN, VOCABULARY, bias=bias, dtype=dtype).requires_grad_(learns)


def head_over(module: nn.Module, *, bf16: bool = False, chunk_elements: int = ONE_CHUNK, **config: float) -> Head:
    base: Any = SimpleNamespace(
        get_output_embeddings=lambda: module,
        config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(**config)),
    )
    return Head(base, bf16=bf16, chunk_elements=chunk_elements)


def hidden_states(dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(TOKENS, HIDDEN, dtype=dtype).mul_(2).requires_grad_()


def targets(*, masked: bool = False) -> Targets:
    """A temperature for each token; where masks are, every third token could have been any."""
    torch.manual_seed(3)
    ids = torch.randint(VOCABULARY, (TOKENS,))
    plain = Targets(ids, torch.linspace(0.5, 1.5, TOKENS))
    if not masked:
        return plain
    masks = torch.randint(-(1 << 31), 1 << 31, (3, 2), dtype=torch.int64).to(torch.int32)
    masks[0] = -1
    which = torch.arange(TOKENS) % 3
    # A token that was drawn is always one that could be.
    drawn = torch.stack(
        [allowed(masks[one][None], VOCABULARY)[0].nonzero()[token % 7, 0] for token, one in enumerate(which)]
    )
    return replace(plain, ids_N=drawn, masks=(masks, which))


def outcome(way: Any, head: Head, asked: Targets, *, bf16: bool = False) -> list[Tensor]:
    """Log-probabilities, entropies, and the gradients of a loss that weighs every token by itself."""
    states = hidden_states()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logprobs, entropies = way(head, states, asked)
    (logprobs * torch.linspace(-1, 2, TOKENS)).sum().backward()
    learnt = [one.grad.clone() for one in head.module.parameters() if one.grad is not None]
    head.module.zero_grad()
    assert states.grad is not None
    return [logprobs.detach(), entropies.detach(), states.grad, *learnt]


@pytest.mark.parametrize("chunk_elements", [ONE_CHUNK, CHUNKS])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_fused_way_equals_the_plain_one(bf16: bool, masked: bool, learns: bool, chunk_elements: int) -> None:
    module = linear(learns=learns, bias=True)
    head = head_over(module, bf16=bf16, chunk_elements=chunk_elements, logit_scale=0.7)
    assert head.linear() is not None
    asked = targets(masked=masked)
    fused, plain = (outcome(way, head, asked, bf16=bf16) for way in (Head.scores, Head.plain_scores))
    assert len(fused) == len(plain) == (5 if learns else 3)
    for one, other in zip(fused, plain, strict=True):
        assert one.dtype == other.dtype == torch.float32
        near = 0.03 if bf16 else 1e-5
        torch.testing.assert_close(one, other, atol=near, rtol=near)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, TOKENS])
@pytest.mark.parametrize("possible", [[], [6], [5, 7]])
def test_tokens_that_could_not_be_drawn_are_scored_as_in_the_plain_way(
    possible: list[int], tokens: int, learns: bool
) -> None:
    head = head_over(linear(learns=learns, bias=True))
    mask = torch.tensor([[sum(1 << token for token in possible), 0]], dtype=torch.int32)
    asked = Targets(torch.full((tokens,), 5), torch.ones(tokens), (mask, torch.zeros(tokens, dtype=torch.long)))
    outcomes: list[list[Tensor]] = []
    for way in (Head.scores, Head.plain_scores):
        states = hidden_states().detach()[:tokens].requires_grad_()
        logprobs, entropies = way(head, states, asked)
        inputs = [states, *(head.module.parameters() if learns else ())]
        outcomes.append([logprobs, entropies, *torch.autograd.grad(logprobs, inputs, torch.ones(tokens))])
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("chunk", [4, TOKENS])
def test_gradients_are_those_of_differences(chunk: int, learns: bool) -> None:
    module, asked = linear(learns=learns, bias=True, dtype=torch.float64), targets(masked=True)

    def logprobs(states: Tensor, *parameters: Tensor) -> Tensor:
        weight, bias = parameters or (module.weight, module.bias)
        return fused_scores(states, asked, LinearHead(weight, bias, 0.7, torch.float64, chunk))[0]

    inputs = (hidden_states(torch.float64), *((module.weight, module.bias) if learns else ()))
    assert torch.autograd.gradcheck(logprobs, inputs)


def kept_bytes(way: Any, head: Head, states: Tensor) -> int:
    """What is kept for the backward pass, beside the states and the head."""
    known = {one.untyped_storage().data_ptr() for one in (states, *head.module.parameters())}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        held = way(head, states, targets())
    del held
    return sum(kept.values())


@pytest.mark.parametrize(("bf16", "size"), [(False, 4), (True, 2)])
@pytest.mark.parametrize("chunk_elements", [ONE_CHUNK, CHUNKS])
def test_under_a_head_that_does_not_learn_one_vector_a_token_is_kept(
    chunk_elements: int, bf16: bool, size: int
) -> None:
    head = head_over(linear(learns=False), bf16=bf16, chunk_elements=chunk_elements)
    assert kept_bytes(Head.scores, head, hidden_states()) == TOKENS * HIDDEN * size


def test_slopes_of_several_chunks_are_not_kept() -> None:
    module = linear(learns=True)
    assert kept_bytes(Head.scores, head_over(module, chunk_elements=CHUNKS), hidden_states()) == 0
    assert kept_bytes(Head.scores, head_over(module), hidden_states()) == TOKENS * VOCABULARY * 4


def test_without_gradients_nothing_is_kept_and_scores_are_the_same() -> None:
    for learns in (False, True):
        head = head_over(linear(learns=learns), chunk_elements=CHUNKS)
        expected = head.scores(hidden_states(), targets())
        with torch.no_grad():
            scored = head.scores(hidden_states(), targets())
        for one, other in zip(scored, expected, strict=True):
            assert not one.requires_grad
            torch.testing.assert_close(one, other.detach(), atol=0, rtol=0)


class Adapted(nn.Linear):
    """As an adapter on the head, or a shard of it, is: another class."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        return 2 * super().forward(input)


def test_caps_and_other_classes_of_heads_take_the_plain_way() -> None:
    module = linear(learns=False)
    capped = head_over(module, final_logit_softcapping=3.0)
    assert capped.linear() is None
    logprobs, _ = capped.scores(hidden_states(), targets())
    assert not torch.allclose(logprobs, head_over(module).scores(hidden_states(), targets())[0], atol=1e-2)
    adapted = Adapted(HIDDEN, VOCABULARY)
    adapted.load_state_dict(linear(learns=False, bias=True).state_dict())
    assert head_over(adapted).linear() is None


def test_an_entropy_that_is_asked_for_its_gradient_has_one() -> None:
    head = head_over(linear(learns=False))
    states = hidden_states()
    assert not head.scores(states, targets())[1].requires_grad
    entropies = head.scores(states, targets(), entropy_gradient=True)[1]
    entropies.sum().backward()
    assert states.grad is not None
    assert float(states.grad.abs().max()) > 0
