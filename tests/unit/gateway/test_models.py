"""What the names of models stand for where roles have no policies yet: aliases, roles behind upstreams, all others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
from pydantic import SecretStr, ValidationError

from ratchet.core.contract.bundle import BundleModel
from ratchet.core.contract.state import PolicyStage, Route
from ratchet.core.errors import Forbidden, NotFound
from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.service.asgi import Request
from ratchet.core.service.keys import KnownKeys
from ratchet.core.service.settings import SharedSettings
from ratchet.gateway.app import keys_of
from ratchet.gateway.domain.prices import Price, Prices
from ratchet.gateway.engines.openai import OpenAiEngine
from ratchet.gateway.kv_bundles import Bundles
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.models import Models
from ratchet.gateway.other_calls import OtherCalls
from ratchet.gateway.settings import Settings, UpstreamSettings
from tests.support.canary_world import served
from tests.support.console_rollouts import version
from tests.support.gateway_alone import Server, alone
from tests.support.messages import AT


def models(folder: Path, upstream: dict[str, str], **names: object) -> Models:
    routes = Routes(
        asyncio.Event().wait, folder, lease_s=20.0, monotonic=lambda: 0.0, bundles=Bundles(lambda: None, folder)
    )  # type: ignore[arg-type]
    return Models(routes, [OpenAiEngine(Server(), "provider", upstream)], **names)  # type: ignore[arg-type]


def of_role(role: str) -> Caller:
    return Caller("key_1", "agent", frozenset({f"infer:{role}"}))


async def test_an_alias_names_its_role_also_before_that_has_a_policy(tmp_path: Path) -> None:
    known = models(tmp_path, {"*": "*"}, aliases={"gpt-4.1-mini": "helpdesk"})
    for name in ("gpt-4.1-mini", "helpdesk"):
        resolved, version = await known.resolve(name, of_role("helpdesk"))
        assert (resolved.role, version) == ("helpdesk", None)
        with pytest.raises(Forbidden):
            await known.resolve(name, of_role("default"))
    assert known.names(of_role("helpdesk")) == ["helpdesk", "gpt-4.1-mini"]
    assert (await known.resolve("gpt-4o", ANYONE))[0].role == "default"


async def test_a_name_that_must_exist_makes_no_role_behind_an_upstream(tmp_path: Path) -> None:
    known = models(tmp_path, {"*": "*"}, roles=["helpdesk"])
    for role in ("helpdesk", "default"):
        assert (await known.resolve(role, ANYONE, exact=True))[0].role == role
    with pytest.raises(NotFound, match="nothing answers for the model 'helpdsek'"):
        await known.resolve("helpdsek", ANYONE, exact=True)


async def test_alias_never_stands_for_a_role_whose_target_cannot_answer(tmp_path: Path) -> None:
    known = models(tmp_path, {"*": "*"}, aliases={"best": "helpdesk_dpo"})
    with pytest.raises(NotFound, match="no usable version that dpo trained"):
        await known.resolve("best", ANYONE)


@pytest.mark.parametrize(("name", "role"), [("gpt-5.5", "default"), ("ghost", "nobody"), ("nobody", "nobody")])
async def test_unanswered_name_tells_what_it_stands_for_and_what_to_set(tmp_path: Path, name: str, role: str) -> None:
    known = models(tmp_path, {"support": "m"}, aliases={"ghost": "nobody"})
    with pytest.raises(NotFound) as missing:
        await known.resolve(name, ANYONE)
    message = str(missing.value)
    assert all(one in message for one in (repr(name), repr(role), "_ALIASES", "_OTHER_ROLE", "_UPSTREAMS"))


async def test_a_role_of_that_name_comes_before_what_an_algorithm_trained(tmp_path: Path) -> None:
    known = models(tmp_path, {"*": "*"}, roles=["helpdesk", "helpdesk_dpo"])
    assert (await known.resolve("helpdesk_dpo", of_role("helpdesk_dpo")))[0].role == "helpdesk_dpo"


def test_what_can_be_asked_for_is_listed_and_nothing_else(tmp_path: Path) -> None:
    own_model = models(tmp_path, {"*": "big-model"})
    assert own_model.names(ANYONE) == own_model.names(of_role("default")) == ["default"]
    assert own_model.names(of_role("support")) == []
    assert models(tmp_path, {"*": "*"}).names(ANYONE) == []  # the provider has no model `default`
    mapped = models(tmp_path, {"support": "m"}, roles=["planner"], aliases={"a": "support", "b": "nobody"})
    assert mapped.names(ANYONE) == ["support", "a"]


def test_the_role_of_a_name_is_that_of_the_scope(tmp_path: Path) -> None:
    known = models(tmp_path, {"search": "embed", "*": "*"}, aliases={"BAAI/bge-m3": "search"}, other_role="other")
    names = ("search", "BAAI/bge-m3", "openai/text-embedding-3-small")
    assert [known.role_of(name) for name in names] == ["search", "search", "other"]


async def test_embeddings_need_the_scope_of_their_models_role_and_count_for_key(
    tmp_path: Path,
) -> None:
    async with alone(tmp_path) as here:
        spent = list[tuple[str, int, float]]()
        prices = Prices(upstreams={"provider": {"*": Price(prompt=10.0, completion=0.0)}})
        calls = here.completions.calls
        others = OtherCalls(calls.reader, calls.models, calls.router, prices, lambda *used: spent.append(used))
        here.server.may_answer.set()
        for name, role, another in (("openai/embedding-3", "default", "support"), ("support", "support", "default")):
            body = msgspec.json.encode({"model": name, "input": "hi"})
            request = Request("POST", "/v1/embeddings", {}, body, caller=of_role(role))
            assert (await others.embeddings(request, None)).status == 200
            with pytest.raises(Forbidden, match=f"infer:{role}"):
                await others.embeddings(msgspec.structs.replace(request, caller=of_role(another)), None)
            key_id, tokens, usd = spent.pop()
            assert (key_id, tokens, usd) == (request.caller.key_id, len(body) // 4, pytest.approx(tokens * 10 / 1e6))
        assert spent == []


VIEWER = Caller("key_2", "service", frozenset({"infer:support", "view"}))


async def test_model_of_an_upstream_stands_in_for_a_roles_policies(tmp_path: Path) -> None:
    known = models(tmp_path, {"support": "small"}, upstream_models={"provider": {"small", "org/large"}})
    resolved, pinned = await known.resolve("support@provider/org/large", VIEWER)
    assert (resolved.role, pinned) == ("support", BundleModel(upstream="provider", name="org/large"))
    assert known.role_of("nobody@provider/small") == "default", "agents cannot create roles"


async def test_the_role_of_other_names_has_an_upstreams_model_too(tmp_path: Path) -> None:
    known = models(tmp_path, {"*": "*"}, upstream_models={"provider": {"*"}})
    resolved, pinned = await known.resolve("default@provider/org/large", ANYONE)
    assert (resolved.role, pinned) == ("default", BundleModel(upstream="provider", name="org/large"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("support@other/small", "there is no upstream 'other' in 'other/small': there are provider"),
        ("support@provider/large", "provider is not set to answer with 'large': with small"),
        ("support@provider/", "provider is not set to answer with ''"),
    ],
)
async def test_model_that_no_upstream_is_set_for_is_refused(tmp_path: Path, name: str, message: str) -> None:
    known = models(tmp_path, {"support": "small"}, upstream_models={"provider": {"small"}})
    with pytest.raises(NotFound, match=message):
        await known.resolve(name, VIEWER)


async def test_judge_names_a_model_of_an_upstream_without_a_role(tmp_path: Path) -> None:
    known = models(tmp_path, {"support": "small"}, upstream_models={"provider": {"small", "org/large"}})
    judge = Caller("key_2", "service", frozenset({"infer:*", "view"}))
    resolved, pinned = await known.resolve("provider/org/large", judge, evaluates=True)
    assert (resolved.role, pinned) == ("default", BundleModel(upstream="provider", name="org/large"))
    with pytest.raises(NotFound, match="provider is not set to answer with 'huge'"):
        await known.resolve("provider/huge", judge, evaluates=True)


async def test_model_of_an_upstream_is_no_agents_to_choose(tmp_path: Path) -> None:
    known = models(tmp_path, {"support": "small"}, upstream_models={"provider": {"small", "large"}})
    with pytest.raises(Forbidden, match="`view:support`"):
        await known.resolve("support@provider/large", of_role("support"))
    with pytest.raises(Forbidden, match="`infer:support`"):
        await known.resolve("support@provider/large", Caller("key_3", "reader", frozenset({"view"})))


async def test_rights_of_one_role_are_none_of_another(tmp_path: Path) -> None:
    known = models(tmp_path, {"support": "small"}, upstream_models={"provider": {"small"}})
    held = frozenset({"infer:*", "view:tenant-*", "view:supporters", "operate:sales", "annotate:sales"})
    with pytest.raises(Forbidden, match="`view:support`"):
        await known.resolve("support@provider/small", Caller("key_4", "reader", held))
    caller = Caller("key_4", "reader", held | {"view:support"})
    assert (await known.resolve("support@provider/small", caller))[1] == BundleModel(upstream="provider", name="small")


async def test_version_that_was_rolled_back_answers_services_and_operators(tmp_path: Path) -> None:
    back = version("support", served(1), PolicyStage.ROLLED_BACK, AT)
    route = Route(role="support", stable=served(2), next_version=3)
    known = Models(Mock(get_route=lambda _: route, roles=lambda: ["support"], version=AsyncMock(return_value=back)), [])
    shared = SharedSettings(data_dir=tmp_path, service_key=SecretStr("of-services-0123456789"))
    keys = keys_of(Settings(shared=shared, api_keys=[SecretStr("of-agents-0123456789")]), AsyncMock())
    operator = Caller("key_1", "ada", frozenset({"infer:*", "operate"}))
    for caller in (await called(keys, "of-services-0123456789"), operator):
        assert (await known.resolve("support@1", caller))[1] == back
    with pytest.raises(Forbidden, match="is rolled_back: only a key with the scope `operate`"):
        await known.resolve("support@1", await called(keys, "of-agents-0123456789"))


async def test_version_of_a_named_role_is_known_before_its_route() -> None:
    first = version("support", served(1), PolicyStage.REGISTERED, AT)
    routes = Mock(get_route=lambda _: None, roles=list, version=AsyncMock(return_value=first))
    known = Models(routes, [], {"gpt-4.1-mini": "support"})
    operator = Caller("key_1", "ada", frozenset({"infer:*", "operate"}))
    assert (await known.resolve(first.name, operator))[1] == first


async def called(keys: KnownKeys, key: str) -> Caller:
    return await keys.caller_of([(b"x-api-key", key.encode())])


def test_upstream_answers_with_what_its_models_and_prices_name() -> None:
    price = {"prompt": 1, "completion": 2}
    settings = {"name": "one", "base_url": "http://one", "models": {"support": "small"}}
    upstream = UpstreamSettings.model_validate(settings | {"prices": {"large": price, "*": price}})
    assert upstream.known_models == {"small", "large"}


async def test_who_would_answer_and_at_which_price_is_for_viewers_alone(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        calls = here.completions.calls
        prices = Prices(upstreams={"provider": {"model": Price(prompt=2.5, completion=10.0)}})
        others = OtherCalls(calls.reader, calls.models, calls.router, prices, lambda *_: None)
        shown: list[dict[str, Any]] = []
        for caller in (VIEWER, of_role("support")):
            answer = await others.get_model(
                "support", Request("GET", "/v1/models/support", {}, b"", caller=caller), None
            )
            shown.append(msgspec.json.decode(answer.body))
    assert [one["id"] for one in shown] == ["support", "support"]
    named = [(one["answered_by"], one["prices"]) for one in shown]
    assert named == [("provider/model", {"prompt": 2.5, "completion": 10.0}), (None, None)]


@pytest.mark.parametrize("target", ["Help Desk", "support@x", "support@", "gpt-4.1-mini", ""])
def test_an_alias_for_what_cannot_be_a_role_is_refused_at_the_start(target: str) -> None:
    with pytest.raises(ValidationError, match="neither a role nor role@version"):
        Settings(aliases={"name": target})


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201])
def test_an_alias_that_no_agent_could_send_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ValidationError, match="cannot name a model"):
        Settings(aliases={name: "support"})
