"""The name is the address: each replica finds a policy in the store when a call first names it, or says why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep

import msgspec
import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from ratchet.core.rules.arms import policy_name
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy, upload_files
from tests.support.engine_process import OUTPUT, PROMPT
from tests.support.joined_streams import events_of, joined
from tests.support.servers import RunningServer
from tests.support.tiny_models import publish_tiny_model, write_tiny_model
from tests.support.vllm_process import HIDDEN, MAX_RANK, RunningVllm

SURE = 1e-3
"""Difference of two log-probabilities that are the same, in nats."""


def test_policy_answers_by_its_name_alone_with_the_trainers_logprobs(vllm: RunningVllm) -> None:
    probe = vllm.published.adapter.manifest.probe
    assert probe is not None
    body = {"model": vllm.model, "prompt": [*PROMPT, *OUTPUT], "max_tokens": 1, "prompt_logprobs": 0}
    answer = vllm.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    given = answer.json()["choices"][0]["prompt_logprobs"][len(PROMPT) :]
    ours = [entry[str(token)]["logprob"] for entry, token in zip(given, OUTPUT, strict=True)]
    assert ours == pytest.approx(probe.logprobs, abs=SURE)
    assert vllm.model in vllm.listed()
    directory = vllm.cache / vllm.published.adapter.digest
    assert (directory / "adapter_model.safetensors").is_file()


def test_a_stream_may_be_the_first_call_for_a_policy(vllm: RunningVllm) -> None:
    name = vllm.name_of(vllm.published.adapter, version=7)
    answer = vllm.ask(name, stream=True, temperature=0)
    (choice,) = joined(events_of(answer.content))["choices"]
    whole = vllm.ask(vllm.model, temperature=0).json()["choices"][0]["message"]
    assert choice["message"]["content"] == whole["content"]


def test_many_first_calls_at_a_time_are_all_answered(vllm: RunningVllm) -> None:
    names = [vllm.name_of(vllm.publish(algorithm=f"sft-{n}-{vllm.logprobs_mode}")) for n in range(3)]
    with ThreadPoolExecutor(9) as callers:
        answers = list(callers.map(lambda name: vllm.ask(name, max_tokens=1), names * 3))
    assert {answer.status_code for answer in answers} == {200}
    assert vllm.ask(names[0]).status_code == 200  # vLLM holds two at a time, and read it from its directory again


def test_ten_roles_on_one_base_answer_though_vllm_holds_two_policies(vllm: RunningVllm) -> None:
    roles = [f"role-{number}" for number in range(10)]
    policies = [vllm.publish(role=role, algorithm=f"sft-{vllm.logprobs_mode}") for role in roles]
    names = [policy_name(role, 1, policy.digest) for role, policy in zip(roles, policies, strict=True)]
    with ThreadPoolExecutor(len(names)) as callers:
        answers = list(callers.map(vllm.ask, names))
    assert [answer.status_code for answer in answers] == [200] * len(names)
    assert [answer.json()["model"] for answer in answers] == names


@pytest.mark.parametrize("name", ["support@3-00000000", "support@3", "gpt-4o"])
def test_a_name_that_the_store_does_not_hold_is_unknown(vllm: RunningVllm, name: str) -> None:
    answer = vllm.ask(name)
    assert answer.status_code == 404
    assert f"The model `{name}` does not exist" in answer.json()["error"]["message"]


def of_rank(vllm: RunningVllm, folder: Path) -> tuple[str, str]:
    base = AutoModelForCausalLM.from_pretrained(vllm.published.directory)
    config = LoraConfig(r=2 * MAX_RANK, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(base, config).save_pretrained(str(folder))
    policy = vllm.publish(files=upload_files(Objects(vllm.shared), folder))
    return vllm.name_of(policy), f"its rank is {2 * MAX_RANK}, and this vLLM runs with --max-lora-rank {MAX_RANK}"


def of_another_base(vllm: RunningVllm, folder: Path) -> tuple[str, str]:
    directory = write_tiny_model(folder / "other", ["another text"], hidden=HIDDEN)
    other = publish_tiny_model(Objects(vllm.shared), directory, "support", vllm.published.model.manifest.created_at)
    return vllm.name_of(vllm.publish(base_model=other.uri, base_digest=other.digest)), "has other weights here"


def of_another_role(vllm: RunningVllm, _: Path) -> tuple[str, str]:
    digest = vllm.publish(role="planner").digest
    return f"support@1-{digest[:8]}", "of the role planner: its digest is not one of support"


def whole_model(vllm: RunningVllm, _: Path) -> tuple[str, str]:
    return vllm.name_of(vllm.published.model), "it is a whole model, and vLLM serves adapters"


def with_config(vllm: RunningVllm, **changes: object) -> Policy:
    """The adapter with another configuration."""
    config = json.loads((vllm.published.adapter_directory / "adapter_config.json").read_text()) | changes
    ref = Objects(vllm.shared).put(json.dumps(config).encode(), "blobs")
    changed = {"uri": ref.uri, "sha256": ref.sha256, "size": ref.size}
    files = vllm.published.adapter.manifest.files
    return vllm.publish(
        files=[
            msgspec.structs.replace(file, **changed) if file.name == "adapter_config.json" else file for file in files
        ]
    )


def of_a_form_that_vllm_does_not_take(vllm: RunningVllm, _: Path) -> tuple[str, str]:
    return vllm.name_of(with_config(vllm, use_dora=True)), "vLLM does not yet support DoRA"


def of_other_bytes(vllm: RunningVllm, _: Path) -> tuple[str, str]:
    files = [msgspec.structs.replace(file, sha256="0" * 64) for file in vllm.published.adapter.manifest.files]
    return vllm.name_of(vllm.publish(files=files)), "does not have sha256 0000"


def half_written(vllm: RunningVllm, _: Path) -> tuple[str, str]:
    files = [
        msgspec.structs.replace(file, uri=file.uri.replace(file.sha256, "0" * 64))
        for file in vllm.published.adapter.manifest.files
    ]
    return vllm.name_of(vllm.publish(files=files)), "lacks a file"


WRONG: list[Callable[[RunningVllm, Path], tuple[str, str]]] = [
    of_rank,
    of_another_base,
    of_another_role,
    whole_model,
    of_a_form_that_vllm_does_not_take,
    of_other_bytes,
    half_written,
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda case: case.__name__)
def test_a_policy_that_this_vllm_cannot_serve_is_refused_in_words(
    replicas: list[RunningVllm], wrong: Callable[[RunningVllm, Path], tuple[str, str]], tmp_path: Path
) -> None:
    (vllm, _) = replicas
    name, words = wrong(vllm, tmp_path)
    answer = vllm.ask(name)
    assert answer.status_code == 424, answer.text
    message = answer.json()["error"]["message"]
    assert message.startswith(name)
    assert words in message
    assert name not in vllm.listed()
    assert vllm.ask(vllm.model).status_code == 200


def test_the_log_names_what_was_fetched_and_holds_no_secret(vllm: RunningVllm) -> None:
    vllm.ask(vllm.name_of(vllm.publish(algorithm="logged")))
    log = vllm.server.log.read_text()
    assert f"Ratchet: {vllm.name_of(vllm.publish(algorithm='logged'))} is verified after" in log
    assert vllm.shared.s3_secret_key not in log


def test_an_unloaded_policy_is_fetched_again_by_the_next_call(vllm: RunningVllm) -> None:
    assert vllm.ask(vllm.model).status_code == 200
    assert vllm.http.post("/v1/unload_lora_adapter", json={"lora_name": vllm.model}).status_code == 200
    assert vllm.model not in vllm.listed()
    assert vllm.ask(vllm.model).status_code == 200


def test_known_names_answer_while_the_object_store_is_away(replicas: list[RunningVllm], s3: RunningServer) -> None:
    (vllm, _) = replicas
    name = vllm.name_of(vllm.publish(algorithm="while away"))
    assert vllm.ask(vllm.model).status_code == 200
    s3.kill()
    try:
        unavailable = vllm.ask(name)
        assert unavailable.status_code == 503
        assert f"{name} cannot be loaded now: object store does not answer" in unavailable.json()["error"]["message"]
        assert vllm.ask(vllm.model).status_code == 200
    finally:
        s3.start()
    deadline = monotonic() + 60  # a store that listens may still refuse for a moment
    while (answer := vllm.ask(name)).status_code == 503 and monotonic() < deadline:
        sleep(0.5)
    assert answer.status_code == 200, answer.text
