"""GEPA (package `gepa`): instructions that a model rewrites as it reads what went wrong with them.

A candidate that does better on a few train tasks is scored on all validation tasks; parents are drawn from the Pareto
front over those (Agrawal et al., GEPA: Reflective Prompt Evolution Can Outperform Reinforcement Learning, 2025).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from gepa.api import optimize
from gepa.core.adapter import EvaluationBatch

from ratchet.bus.message import JsonObject
from ratchet.core.contract.bundle import REPLACE, Bundle, Instructions
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.evaluation.task_files import GradedTask
from ratchet.core.rules.bundles import SENT, variables_in
from ratchet.core.rules.chat import text_of
from ratchet.trainer_worker.training.prompts.base import Played, SearchJob, SearchRun

COMPONENT = "instructions"
IDLE = 50
"""Iterations without a call after which nothing new is to be expected: every train task of the batch is solved, or the
reflector repeats itself."""
RECORDED = 2
"""Recorded conversations that a reflection reads beside its train tasks."""
CHARACTERS = 4000
"""Most of a conversation that a reflection reads."""
TEMPLATE = """An assistant works with this system prompt:
```
<curr_param>
```
`{{instructions}}` in it stands for what the assistant's program sends by itself (shown below as the system message),
and `{{variables.NAME}}` for a value of the request. Keep such a placeholder where its text is still wanted, and use no
other.

Conversations that it had with this prompt, and what was said of each:
<side_info>

Write a better system prompt. Find out from the words above what goes wrong and which rules and facts of the task the
assistant does not know, and state them in general terms: it will meet other conversations than these.

Answer with the new system prompt within ``` blocks, and nothing else."""

log = logging.getLogger(__name__)

# It calls the methods that an object has; its protocols ask for all of them, and for its names of arguments.
_OPTIMIZE: Any = optimize


def search(job: SearchJob, run: SearchRun) -> None:
    """Search until the validation tasks are all solved or nothing new comes, or as long as the budget and `max_steps`
    (iterations) allow."""
    hyper, adapter = job.hyperparameters, _Adapter(job, run)
    _OPTIMIZE(
        seed_candidate={COMPONENT: instructions_of(job.start).text},
        trainset=[*job.train],
        valset=[*job.validation],
        adapter=adapter,
        reflection_lm=run.reflect,
        reflection_prompt_template=TEMPLATE,
        reflection_minibatch_size=min(hyper.batch_size or job.batch_size, len(job.train)),
        stop_callbacks=[_Stop(run, hyper.max_steps)],
        callbacks=[_Scores(job, run)],
        logger=_Log(),
        track_best_outputs=False,
        seed=hyper.seed or 0,
    )


def instructions_of(bundle: Bundle) -> Instructions:
    """Those of a bundle; without any, what the agent sends."""
    return bundle.instructions or Instructions(text=f"{{{{{SENT}}}}}", mode=REPLACE)


def with_text(start: Bundle, text: str) -> Bundle:
    """The bundle with other instructions. Those may use the variables that it declares, and need not."""
    before = instructions_of(start)
    variables = tuple(name for name in variables_in(text) if name in before.variables)
    return msgspec.structs.replace(start, instructions=Instructions(text=text, mode=before.mode, variables=variables))


class _Adapter:
    """`gepa.core.adapter.GEPAAdapter`, which is not typed."""

    propose_new_texts = None

    def __init__(self, job: SearchJob, run: SearchRun) -> None:
        self._job = job
        self._run = run
        self._recorded = sorted((row for row in job.recorded if row.words), key=lambda row: row.reward)
        self._next = 0

    def evaluate(
        self, batch: list[GradedTask], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Any, Any]:
        played = self._run.play(with_text(self._job.start, candidate[COMPONENT]), batch)
        scores = [task.score for task in played]
        return EvaluationBatch(outputs=scores, scores=scores, trajectories=played if capture_traces else None)

    def make_reflective_dataset(
        self, _candidate: dict[str, str], eval_batch: EvaluationBatch[Any, Any], _components: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, str]]]:
        played: list[Played] = eval_batch.trajectories or []
        records = [_record(task.messages, f"score {task.score:g}: {task.why}") for task in played]
        return {COMPONENT: [*records, *map(_recorded, self._some_recorded())]}

    def _some_recorded(self) -> list[TrajectoryRow]:
        """The next ones, those of the least reward first."""
        rows = self._recorded
        places = range(self._next, self._next + min(RECORDED, len(rows)))
        self._next += RECORDED
        return [rows[place % len(rows)] for place in places]


class _Scores:
    """Hears of each candidate that was scored on all validation tasks."""

    def __init__(self, job: SearchJob, run: SearchRun) -> None:
        self._job = job
        self._run = run
        self._bundles: list[Bundle] = []

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        bundle = with_text(self._job.start, event["candidate"][COMPONENT]) if self._bundles else self._job.start
        scores = {self._job.validation[place].task.id: score for place, score in event["scores_by_val_id"].items()}
        self._bundles.append(bundle)
        parents = [self._bundles[parent] for parent in event["parent_ids"] if parent is not None]
        self._run.scored(bundle, parents, scores)


class _Stop:
    """Ends a search that has nothing left to find: it would go on for ever without a call."""

    def __init__(self, run: SearchRun, most: int | None) -> None:
        self._run = run
        self._most = most
        self._idle, self._calls = 0, -1

    def __call__(self, state: Any) -> bool:
        calls = self._run.calls()
        self._idle, self._calls = (self._idle + 1, calls) if calls == self._calls else (0, calls)
        best = max(sum(scores.values()) / len(scores) for scores in state.prog_candidate_val_subscores)
        is_over = self._most is not None and state.i + 1 >= self._most
        return is_over or best >= 1 or self._idle >= IDLE


class _Log:
    """`gepa.logging.logger.LoggerProtocol`."""

    def log(self, message: str) -> None:
        log.info("%s", message)


def _record(messages: Sequence[JsonObject], words: str) -> dict[str, str]:
    return {"Conversation": conversation_text(messages), "What was said of it": words}


def _recorded(row: TrajectoryRow) -> dict[str, str]:
    return _record(row.messages, "; ".join([f"reward {row.reward:g}", *row.words]))


def conversation_text(messages: Sequence[JsonObject]) -> str:
    """A conversation in lines, its calls of tools included; of a long one the beginning and the end."""
    lines: list[str] = []
    for message in messages:
        text = text_of(message.get("content"))
        calls: list[JsonObject] = message.get("tool_calls") or []
        for call in calls:
            function: JsonObject = call.get("function") or {}
            text += f" [calls {function.get('name')}({function.get('arguments')})]"
        lines.append(f"{message.get('role')}: {text.strip()}")
    whole, half = "\n".join(lines), CHARACTERS // 2
    return whole if len(whole) <= CHARACTERS else f"{whole[:half]}\n...\n{whole[-half:]}"
