"""The options of a search for a better prompt, checked before anything is asked, and its task files in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ratchet.cli.connections import objects_of
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.options import with_options
from ratchet.core.contract.training import CallBudget, PromptSearch, TaskFileRef, TokenPrices
from ratchet.core.evaluation.task_files import read_content, tasks_by_digest


class Asked(NamedTuple):
    """What the command line says of a search."""

    reflector: str
    train_tasks: Path
    validation_tasks: Path
    budget: CallBudget
    reflector_prices: TokenPrices | None
    answer_prices: TokenPrices | None


def search_of(
    reflector: Annotated[
        str | None,
        typer.Option(metavar="UPSTREAM/MODEL", help="gepa: the model that rewrites prompts; or a role, or a policy."),
    ] = None,
    train_tasks: Annotated[Path | None, typer.Option(help="gepa: a task file to learn from.")] = None,
    validation_tasks: Annotated[
        Path | None, typer.Option(help="gepa: a task file to choose by, without tasks of the other or of the gate.")
    ] = None,
    budget_calls: Annotated[int, typer.Option(min=1, help="gepa: most calls of models.")] = 500,
    budget_tokens: Annotated[int | None, typer.Option(min=1, help="gepa: most tokens.")] = None,
    budget_usd: Annotated[
        float | None, typer.Option(help="gepa: most US dollars, at the prices that are set in the gateway.")
    ] = None,
    reflector_price: Annotated[
        str | None,
        typer.Option(
            metavar="PROMPT,ANSWER",
            help="In place of the reflector's: US dollars for a million tokens, as 2.5,10.",
        ),
    ] = None,
    answer_price: Annotated[
        str | None, typer.Option(metavar="PROMPT,ANSWER", help="The same of what answers for the role.")
    ] = None,
) -> Asked | None:
    """None where no option of a search is given. Raises `typer.BadParameter` where one is missing."""
    needed = {"--reflector": reflector, "--train-tasks": train_tasks, "--validation-tasks": validation_tasks}
    missing = [name for name, value in needed.items() if value is None]
    if reflector is None or train_tasks is None or validation_tasks is None:
        if len(missing) == len(needed):
            return None
        raise typer.BadParameter(f"a search for a better prompt needs {' and '.join(missing)} too")
    budget = CallBudget(calls=budget_calls, tokens=budget_tokens, usd=budget_usd)
    prices = _prices("--reflector-price", reflector_price), _prices("--answer-price", answer_price)
    return Asked(reflector, train_tasks, validation_tasks, budget, *prices)


takes_search = with_options("search", search_of)
"""A command that has the options of `search_of` in the place of its parameter `search`, which gets the result."""


def stored_search(endpoints: Endpoints, role: str, asked: Asked) -> PromptSearch:
    """A role's search as a request names it; its files are stored. Raises `NotFound`, or `Rejected` for no task."""
    objects = objects_of(endpoints, role)

    def stored(path: Path) -> TaskFileRef:
        content = read_content(path)
        tasks_by_digest(content, str(path))
        ref = objects.put(content, "blobs", ".jsonl")
        return TaskFileRef(uri=ref.uri, sha256=ref.sha256)

    return PromptSearch(
        reflector=asked.reflector,
        train_tasks=stored(asked.train_tasks),
        validation_tasks=stored(asked.validation_tasks),
        budget=asked.budget,
        reflector_prices=asked.reflector_prices,
        answer_prices=asked.answer_prices,
    )


def _prices(option: str, text: str | None) -> TokenPrices | None:
    if text is None:
        return None
    try:
        prompt, answer = (float(part) for part in text.split(","))
        if min(prompt, answer) < 0:
            raise ValueError
    except ValueError as error:
        raise typer.BadParameter(f"{option} is two prices, as 2.5,10: {text!r} is not") from error
    return TokenPrices(prompt=prompt, completion=answer)
