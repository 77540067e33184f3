"""The two models of a search for a bundle, as the gateway knows them: their names there, and what their tokens cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ratchet.core.contract.http.gateway import AnsweredModel
from ratchet.core.contract.training import PromptSearch, TokenPrices
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.evaluation.http_player import model_named
from ratchet.core.service.http_client import AsyncApiClient

PRICE_OPTIONS: Mapping[str, str] = {"reflector_prices": "--reflector-price", "answer_prices": "--answer-price"}
"""By member of a search: the option of `ratchet train` that sets it."""


class SearchPrices(NamedTuple):
    """US dollars for a million tokens; None where there is no price, and none is needed."""

    reflector: TokenPrices | None
    answers: TokenPrices | None
    """Of what answers for the role."""


def reflector_name(role: str, reflector: str) -> str:
    """The reflector as the gateway is asked for it: `UPSTREAM/MODEL` in the place of the role's policies, so that what
    it reads is recorded as the role's; any other name as it is."""
    return f"{role}@{reflector}" if "/" in reflector else reflector


async def search_prices(client: AsyncApiClient, search: PromptSearch, role: str, asked: str) -> SearchPrices:
    """What the tokens of a search cost: as the search says, else as it is set in the gateway.

    `asked`: the policy that answers for the role, or the role. Raises `Rejected` for a model that the gateway does not
    know, and for one without a price where the budget has US dollars; `Unavailable`.
    """
    reflector = await _known(client, reflector_name(role, search.reflector), "prompts.reflector: ")
    answers = await _known(client, asked, "")
    prices = SearchPrices(search.reflector_prices or reflector.prices, search.answer_prices or answers.prices)
    if search.budget.usd is not None:
        for price, model, member in zip(prices, (reflector, answers), PRICE_OPTIONS, strict=True):
            if price is None:
                raise Rejected(_unpriced(model, member))
    return prices


async def _known(client: AsyncApiClient, name: str, place: str) -> AnsweredModel:
    try:
        return await model_named(client, name)
    except NotFound as error:
        raise Rejected(f"{place}{error}") from error


def _unpriced(model: AnsweredModel, member: str) -> str:
    if model.answered_by is None:
        return f"prompts.budget.usd is kept by prices, and which model answers for {model.id} is not known now"
    return (
        f"prompts.budget.usd is kept by prices, and {model.answered_by} has none: set it in `prices` of its"
        " upstream (RATCHET_GATEWAY_UPSTREAMS), of a policy's engine in RATCHET_GATEWAY_ENGINE_PRICE, or give"
        f" prompts.{member} ({PRICE_OPTIONS[member]})"
    )
