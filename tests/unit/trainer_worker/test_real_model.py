"""The learner takes a model of thirty layers in bfloat16 as it is, and sees a head that caps its logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ratchet.core.chat_templates.conversations import Conversation
from ratchet.core.chat_templates.encoder import ChatEncoder
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.logprobs import Scorer, check_head
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet_helpdesk import reception
from tests.support.real_model import real_model


def check_rounding_and_cap(model: Any, row: Row, cap: float) -> None:
    """Its rounding is no strange model; with a capped head it is one."""
    with torch.no_grad():
        check_head(Scorer(model, bf16=True), [row])
        model.config.final_logit_softcapping = cap
        with pytest.raises(DataUnusable, match="changes its logits"):
            check_head(Scorer(model, bf16=True), [row])


@pytest.mark.slow
def test_check_head_tells_rounding_of_a_trained_model_from_a_capped_head() -> None:
    chats = reception.chats(reception.BIASED, "clerk", 24, 1000)
    task_id, messages = min(chats, key=lambda chat: len(str(chat[1])))
    encoder = ChatEncoder(AutoTokenizer.from_pretrained(real_model()))
    (encoded,) = encoder.rows([Conversation(task_id, messages, reception.tool_definitions(), 0)])
    row = Row.of(encoded.trajectory_id, encoded.token_ids, encoded.loss_mask)
    model = AutoModelForCausalLM.from_pretrained(real_model(), dtype=torch.bfloat16)
    check_rounding_and_cap(model, row, 30.0)


def test_check_head_tells_rounding_of_thirty_layers_from_a_capped_head() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=30,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    row = Row.of("try", list(range(20, 60)), [0] * 10 + [1] * 30)
    check_rounding_and_cap(LlamaForCausalLM(config).to(torch.bfloat16), row, 1.0)
