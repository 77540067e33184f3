"""A short completion of the trained policy with its log-probabilities, for engines to check themselves against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ratchet.contract.policy_manifest import Probe
from ratchet.trainer_worker.training.policy import TrainedPolicy

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 16


@torch.no_grad()
def probe_policy(policy: TrainedPolicy, prompt: Sequence[int]) -> Probe:
    """Continue `prompt` greedily; log-probabilities are of the undivided distribution, in float32."""
    model: Any = policy.model
    model.eval()
    end = cast("int | None", policy.tokenizer.eos_token_id)
    ids = list(prompt[-PROMPT_TOKENS:]) or [end or 0]
    shown = len(ids)
    logprobs: list[float] = []
    with torch.autocast(policy.device.type, torch.bfloat16, enabled=policy.bf16):
        for _ in range(OUTPUT_TOKENS):
            logits: Tensor = model(input_ids=torch.tensor([ids], device=policy.device), use_cache=False).logits[0, -1]
            all_logprobs = torch.log_softmax(logits.float(), -1)
            best = int(all_logprobs.argmax())
            ids.append(best)
            logprobs.append(float(all_logprobs[best]))
            if best == end:
                break
    return Probe(prompt_token_ids=ids[:shown], output_token_ids=ids[shown:], logprobs=logprobs)
