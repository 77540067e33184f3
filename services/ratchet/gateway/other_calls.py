"""Calls that become no turn: which models there are, the number of tokens of a prompt, and embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

from ratchet.core.contract.http.gateway import AnsweredModel, Model, Models as ModelList
from ratchet.core.contract.training import TokenPrices
from ratchet.core.contract.turn import Usage
from ratchet.core.errors import BadRequest, NotFound
from ratchet.core.rules.access import KeyScope
from ratchet.core.service.asgi import Request, Response, json_response
from ratchet.dialects.messages.dialect import MESSAGES, asked_of, read_call_of
from ratchet.dialects.messages.reading import count_of, estimate
from ratchet.dialects.requests import ADAPTER_ID, Body, read_fields, value_of
from ratchet.gateway import metrics
from ratchet.gateway.call_router import CallRouter
from ratchet.gateway.calls import RequestReader, passed_headers
from ratchet.gateway.domain.prices import CHARACTERS, FREE, Prices, likely
from ratchet.gateway.engines.base import EngineError, EngineFailed, relayed_headers
from ratchet.gateway.engines.policies import NoEngine
from ratchet.gateway.models import Models
from ratchet.gateway.recorder import Account

COUNTED_BY = b"x-ratchet-count"
"""Header of a count: `exact` by the engine that would answer, `estimated` where it cannot tell."""


@dataclass(frozen=True)
class OtherCalls:
    """One method per route."""

    reader: RequestReader
    models: Models
    router: CallRouter
    prices: Prices
    account: Account
    """Takes what the calls of a key used."""

    async def list_models(self, request: Request, _: str | None) -> Response:
        """GET /v1/models: those that the caller's key may ask."""
        return json_response(ModelList(data=[Model(id=name) for name in self.models.names(request.caller)]))

    async def get_model(self, name: str, request: Request, _: str | None) -> Response:
        """GET /v1/models/{name}: any name that a call may use, and who would answer it now.

        Raises `NotFound`, or `Forbidden` for another role.
        """
        try:
            model, version = await self.models.resolve(name, request.caller)
            await self.router.prepare(model.role, version)
            choice = self.router.serving(model.role, version, name)
        except NotFound as error:
            raise NotFound(str(error), param="model", code="model_not_found") from error
        engine, served = choice.engine.info.name, choice.served.name.removeprefix(f"{choice.engine.info.name}:")
        if isinstance(choice.engine, NoEngine) or not request.caller.allows(KeyScope.VIEW, model.role):
            return json_response(AnsweredModel(id=name))
        price = self.prices.price_of(engine, served)
        by = served if self.router.serves_policies(choice.engine) else f"{engine}/{served}"
        prices = TokenPrices(prompt=price.prompt, completion=price.completion) if price else None
        return json_response(AnsweredModel(id=name, answered_by=by, prices=prices))

    async def count_tokens(self, request: Request, _: str | None) -> Response:
        """POST /v1/messages/count_tokens: as the engine counts that would answer, else an estimate.

        Raises `BadRequest`, `NotFound`, `Forbidden`, `EngineError`, and `Unavailable` when the gateway cannot look up a
        version.
        """
        call = await self.reader.apply(lambda body: read_call_of(read_fields(body), counting=True), request.body)
        model, version = await self.models.resolve(call.model, request.caller, exact=call.named_by == ADAPTER_ID)
        await self.router.prepare(model.role, version)
        choice = self.router.serving(model.role, version, call.asked_model)
        if choice.bundle is not None:
            apply = partial(choice.bundle.apply, MESSAGES, call, partial(read_call_of, counting=True))
            call = await self.reader.apply(lambda _: apply(), request.body)
        count = await choice.engine.count_tokens(call, choice.served, model.role)
        counted = estimate(asked_of(call).chat) if count is None else count
        by = b"estimated" if count is None else b"exact"
        return json_response({"input_tokens": counted}, headers=[(COUNTED_BY, by)])

    async def embeddings(self, request: Request, _: str | None) -> Response:
        """POST /v1/embeddings: the answer of the first upstream that maps the model, or of the next one where it fails.

        Raises `BadRequest` without a model, `NotFound` for one that no upstream maps, and `Forbidden` for a role
        that is not the caller's key's.
        """
        fields = read_fields(request.body)
        asked = value_of(fields, "model")
        if not isinstance(asked, str) or not asked:
            raise BadRequest("model must be a string", param="model")
        request.caller.require(KeyScope.INFER, self.models.role_of(asked))
        upstreams = self.router.upstreams_for(self.models.alias_of(asked), asked)
        failure = None
        for upstream, model in upstreams:
            try:
                reply = await upstream.forward("/embeddings", fields, model, passed_headers(request))
            except EngineError as error:
                failure = error
                metrics.EMBEDDINGS.labels(upstream.info.name, str(error.status)).inc()
                if isinstance(error, EngineFailed):
                    continue
                break
            metrics.EMBEDDINGS.labels(upstream.info.name, "200").inc()
            usage = cast("Body", reply.body).get("usage") if isinstance(reply.body, dict) else None
            tokens = likely(count_of(usage, "prompt_tokens") or 0)
            metrics.EMBEDDING_TOKENS.labels(upstream.info.name).inc(tokens)
            self._account(request, upstream.info.name, model.name, tokens)
            return Response(200, reply.raw, relayed_headers(reply.headers))
        if failure is None:
            message = f"no upstream has embeddings of {asked!r}: policies have none; the operator can map the model"
            raise NotFound(message, param="model", code="model_not_found")
        raw = failure.relayed[1] if failure.relayed is not None else failure.json
        return Response(failure.status, raw, failure.headers)

    def _account(self, request: Request, upstream: str, model: str, tokens: int) -> None:
        """Count what the caller's key used; without the server's word, as `spent_tokens` estimates a prompt."""
        if request.caller.key_id is None:
            return
        used = tokens or len(request.body) // CHARACTERS
        price = self.prices.price_of(upstream, model.removeprefix(f"{upstream}:")) or FREE
        self.account(request.caller.key_id, used, price.cost_of(Usage(prompt=used, completion=0)))
