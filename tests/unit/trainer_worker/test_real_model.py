"""The learner takes a trained model of thirty layers in bfloat16 as it is."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ratchet.core.chat_templates.conversations import Conversation
from ratchet.core.chat_templates.encoder import ChatEncoder
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.logprobs import Scorer, check_head
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet_helpdesk import reception
from tests.support.real_model import real_model


def test_the_rounding_of_a_trained_model_is_no_strange_model_and_a_capped_head_is_one() -> None:
    chats = sorted(reception.chats(reception.BIASED, "clerk", 24, 1000), key=lambda chat: len(str(chat[1])))[:3]
    tools = reception.tool_definitions()
    encoder = ChatEncoder(AutoTokenizer.from_pretrained(real_model()))
    encoded = encoder.rows(Conversation(task_id, messages, tools, 0) for task_id, messages in chats)
    rows = [Row.of(row.trajectory_id, row.token_ids, row.loss_mask) for row in encoded]
    model = AutoModelForCausalLM.from_pretrained(real_model(), dtype=torch.bfloat16)
    scorer = Scorer(model, bf16=True)

    with torch.no_grad():
        for row in rows:
            check_head(scorer, [row])
        model.config.final_logit_softcapping = 30.0
        with pytest.raises(DataUnusable, match="changes its logits"):
            check_head(Scorer(model, bf16=True), rows[:1])
