"""Tokens of people: those that an issuer gave for us lately open what it says; forged, old and strange ones nothing."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pydantic import ValidationError

from ratchet.bus.testing import FakeClock
from ratchet.core.contract.http.gateway import FeedbackTaken
from ratchet.core.errors import Unavailable
from ratchet.core.rules.access import NAME, Caller, KeyScope
from ratchet.core.service.asgi import Headers
from ratchet.core.service.authentication import Authentication, presented_key
from ratchet.core.service.control_api import ControlApi
from ratchet.core.service.keys import KnownKeys, setting_key
from ratchet.core.service.people import AGAIN_S, KEYS_S, LONGEST_S, SKEW_S, STALE_S, TOKEN_BYTES, People
from ratchet.core.service.problems import HttpError
from ratchet.core.service.settings import OidcSettings
from tests.support.contract_files import ALL_SCHEMAS
from tests.support.issuer import CLIENT, LocalIssuer, issuing, new_key


@pytest_asyncio.fixture
async def issuer() -> AsyncIterator[LocalIssuer]:
    async with issuing() as local:
        yield local


async def opens(people: People, token: str | bytes) -> bool:
    """Whether a token names a person. Any other answer than 401 is a fault."""
    try:
        await people.caller_of(token.encode() if isinstance(token, str) else token)
    except HttpError as error:
        if error.status != 401:
            raise
        return False
    return True


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


RIGHTS_OF: list[tuple[Any, list[str], list[str]]] = [
    (["help"], ["operate:support", "train:support", "annotate:support"], ["view:sales", "infer:support"]),
    (["readers"], ["view:support", "view:sales"], ["operate:support", "admin"]),
    (["acme"], ["operate:acme-x", "infer:acme-x", "feedback:acme-x"], ["view:acmecorp", "admin"]),
    (["platform"], ["admin", "operate:x", "infer:x"], []),
    (["help", "readers"], ["operate:support", "view:sales"], ["operate:sales"]),
    ("readers", ["view:sales"], ["operate:sales"]),
    (["foreigns"], [], ["view:support"]),
    (None, [], ["view:support"]),
    ({"help": 1}, [], ["view:support"]),
    ([["help"], 7], [], ["view:support"]),
]
"""Groups, what their members may do, and what not."""


async def test_groups_give_the_rights_that_the_settings_name(issuer: LocalIssuer) -> None:
    people = issuer.people()
    for groups, allowed, refused in RIGHTS_OF:
        caller = await people.caller_of(issuer.token(groups=groups).encode())
        for right in (*allowed, *refused):
            scope, _, role = right.partition(":")
            assert caller.allows(KeyScope(scope), role or None) is (right in allowed), (groups, right)


async def test_person_is_known_by_subject_and_named_by_address(issuer: LocalIssuer) -> None:
    people = issuer.people()
    ada = await people.caller_of(issuer.token().encode())
    renamed = await people.caller_of(issuer.token(email="ada.l@example.com").encode())
    other = await people.caller_of(issuer.token(sub="u-2").encode())
    assert ada.name == "ada@example.com"
    assert ada.key_id == renamed.key_id != other.key_id
    assert re.search(ALL_SCHEMAS["key.v1"]["properties"]["key_id"]["pattern"], ada.key_id or "")
    for claims in (
        {"email": "a+b\n@x.org"},
        {"email": ""},
        {"sub": "|auth0\u202e", "email": None},
        {"email": "x" * 200},
    ):
        assert NAME.fullmatch((await people.caller_of(issuer.token(**claims).encode())).name)
    for unproven in (False, "false"):
        token = issuer.token(email="boss@example.com", email_verified=unproven)
        assert (await people.caller_of(token.encode())).name == "u-1"


async def test_claim_may_stand_within_another(issuer: LocalIssuer) -> None:
    inner = People(issuer.settings(claim="realm_access.roles"))
    assert (await inner.caller_of(issuer.token(realm_access={"roles": ["help"]}).encode())).scopes
    assert not (await inner.caller_of(issuer.token(realm_access=["roles"]).encode())).scopes
    dotted = People(issuer.settings(claim="https://x.org/groups"))
    assert (await dotted.caller_of(issuer.token(**{"https://x.org/groups": ["help"]}).encode())).scopes


STRANGE: list[dict[str, Any]] = [
    {"iss": "https://other.example.com"},
    {"iss": None},
    {"aud": "another"},
    {"aud": []},
    {"aud": None},
    {"aud": [CLIENT, "another"], "azp": "another"},
    {"exp": int(time.time()) - SKEW_S - 1},
    {"exp": None},
    {"exp": "tomorrow"},
    {"iat": 10**400},
    {"nbf": int(time.time()) + 3600},
    {"iat": int(time.time()) + 3600},
    {"iat": int(time.time() - LONGEST_S) - 60, "exp": int(time.time()) + 10**6},
    {"iat": None},
    {"sub": None},
    {"sub": ""},
    {"sub": ["u-1"]},
]
"""Claims that one or the other part of a token must not have."""


async def test_token_of_another_time_place_or_client_opens_nothing(issuer: LocalIssuer) -> None:
    people = issuer.people()
    assert await opens(people, issuer.token())
    for claims in STRANGE:
        assert not await opens(people, issuer.token(**claims)), claims


async def test_clock_of_the_issuer_may_differ_a_little(issuer: LocalIssuer) -> None:
    now = int(time.time())
    for claims in ({"iat": now + 20, "nbf": now + 20}, {"exp": now - 20}, {"aud": [CLIENT, "b"], "azp": CLIENT}):
        assert await opens(issuer.people(), issuer.token(**claims))


async def test_forged_token_opens_nothing(issuer: LocalIssuer) -> None:
    people, good, own = issuer.people(), issuer.token(), issuer.keys[0]
    head, body, signature = good.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    mac_head = part({"alg": "HS256", "kid": own.kid})
    mac = hmac.digest(own.as_pem(private=False), f"{mac_head}.{body}".encode(), "sha256")
    by_public_key = f"{mac_head}.{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"
    foreign = new_key(str(own.kid))
    forged = [
        f"{part({'alg': 'none', 'kid': own.kid})}.{body}.",
        f"{part({'alg': 'None'})}.{body}.{signature}",
        by_public_key,
        issuer.token(foreign),
        f"{part({'alg': 'RS256', 'jwk': foreign.as_dict(private=False)})}.{body}.{signature}",
        f"{head}.{part({**claims, 'groups': ['platform']})}.{signature}",
        f"{head}.{body}.{signature[:-4]}AAAA",
        f"{head}.{body}.",
        f"{part({'alg': 'RS256', 'kid': own.kid, 'crit': ['x'], 'x': 1})}.{body}.{signature}",
        f"{part([])}.{body}.{signature}",
        f"{head}.{part(7)}.{signature}",
        "..",
        "a.b.c",
        b"\xff.\xff.\xff",
        f"{head}.{base64.urlsafe_b64encode(b'[' * 6000).decode().rstrip('=')}.x"[:TOKEN_BYTES],
        good + "A" * TOKEN_BYTES,
    ]
    assert await opens(people, good)
    for token in forged:
        assert not await opens(people, token), token[:80]


async def test_every_kind_of_signature_of_the_list_opens(issuer: LocalIssuer) -> None:
    issuer.keys.append(new_key("curve", "EC"))
    people = issuer.people()
    for key, alg in ((issuer.keys[0], "RS512"), (issuer.keys[0], "PS256"), (issuer.keys[1], "ES256")):
        assert await opens(people, issuer.token(key, alg))


async def test_key_that_is_exchanged_counts_at_once_and_the_old_one_ends(issuer: LocalIssuer) -> None:
    clock = FakeClock()
    people = issuer.people(monotonic=clock.monotonic)
    old = issuer.token()
    assert await opens(people, old)
    clock.advance(AGAIN_S + 1)
    issuer.keys = [new_key("two")]
    assert await opens(people, issuer.token())
    assert not await opens(people, old)


async def test_unknown_keys_make_no_more_requests_than_one_in_a_while(issuer: LocalIssuer) -> None:
    clock = FakeClock()
    people = issuer.people(monotonic=clock.monotonic)
    assert await opens(people, issuer.token())
    foreign = new_key("foreign")
    for _ in range(20):
        assert not await opens(people, issuer.token(foreign))
    assert issuer.asked.count("/keys") == 1
    clock.advance(KEYS_S + 1)
    assert await opens(people, issuer.token())
    assert issuer.asked.count("/keys") == 2


async def test_known_keys_count_for_an_hour_while_the_issuer_is_away() -> None:
    clock = FakeClock()
    async with issuing() as issuer:
        people = issuer.people(monotonic=clock.monotonic)
        assert await opens(people, issuer.token())
    clock.advance(STALE_S - 1)
    assert await opens(people, issuer.token())
    clock.advance(2)
    with pytest.raises(Unavailable, match="does not answer"):
        await people.caller_of(issuer.token().encode())


UNUSABLE: list[object] = [
    {"keys": "none"},
    {"keys": [{"kty": "oct", "k": "AAAA", "kid": "one"}]},
    {"keys": [{"kty": "RSA", "n": "!", "e": "AQAB", "kid": "one"}]},
    {"keys": [{"kid": "one"} for _ in range(100_000)]},
    [],
]
"""Key sets, one of them larger than is read."""


async def test_keys_that_cannot_be_used_open_nothing(issuer: LocalIssuer) -> None:
    for published in UNUSABLE:
        issuer.published = published
        with pytest.raises((HttpError, Unavailable)):
            await issuer.people().caller_of(issuer.token().encode())


async def test_one_strange_key_leaves_the_others(issuer: LocalIssuer) -> None:
    own = issuer.keys[0].as_dict(private=False)
    issuer.published = {"keys": [{"kty": "PQ", "kid": "new"}, {"kty": "RSA", "n": "!", "e": "AQAB"}, own]}
    assert await opens(issuer.people(), issuer.token())


async def test_issuer_that_calls_itself_otherwise_is_not_believed(issuer: LocalIssuer) -> None:
    people = People(issuer.settings(issuer=issuer.url.replace("127.0.0.1", "localhost")))
    with pytest.raises(Unavailable):
        await people.caller_of(issuer.token().encode())


async def test_live_stream_of_a_person_ends_with_the_token(issuer: LocalIssuer) -> None:
    clock = FakeClock(datetime.now(UTC))
    people = issuer.people(now=clock)
    heard = list[int]()

    async def events() -> AsyncGenerator[bytes, None]:
        """News."""

        async def news() -> AsyncGenerator[bytes, None]:
            for number in range(5):
                heard.append(number)
                yield b"data: %d\n\n" % number
                clock.advance(150)

        return news()

    async def identify(headers: Headers) -> Caller:
        return await people.caller_of(presented_key(headers) or b"")

    api = ControlApi("Things", "All there is.", errors={})
    api.stream("/v1/events", events, scope=KeyScope.VIEW, events={"thing": FeedbackTaken})
    transport = httpx.ASGITransport(Authentication(api, identify))
    async with httpx.AsyncClient(transport=transport, base_url="http://things") as client:
        bearer = {"authorization": f"Bearer {issuer.token(groups=['readers'])}"}
        answer = await client.get("/v1/events", headers=bearer)
        assert (answer.text, heard) == ("data: 0\n\ndata: 1\n\ndata: 2\n\n", [0, 1, 2, 3])
        assert (await client.get("/v1/events", headers=bearer)).status_code == 401


async def test_service_with_an_issuer_is_never_open(issuer: LocalIssuer, tmp_path: Any) -> None:
    async def connect() -> Any:
        await asyncio.Event().wait()

    keys = KnownKeys(connect, tmp_path / "keys.json", is_local=True, people=issuer.people().caller_of)
    assert not keys.is_open
    bearer = [(b"authorization", b"Bearer " + issuer.token().encode())]
    assert (await keys.caller_of(bearer)).name == "ada@example.com"
    for headers in ([], [(b"authorization", b"Bearer a.b.c")]):
        with pytest.raises(HttpError):
            await keys.caller_of(headers)


async def test_key_of_the_settings_may_be_written_like_a_token(issuer: LocalIssuer, tmp_path: Any) -> None:
    async def connect() -> Any:
        await asyncio.Event().wait()

    own = [setting_key("ops.2026.0123456789", "ops", ["admin"])]
    keys = KnownKeys(connect, tmp_path / "keys.json", own=own, is_local=True, people=issuer.people().caller_of)
    assert (await keys.caller_of([(b"x-api-key", b"ops.2026.0123456789")])).name == "ops"


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": "http://id.example.com"},
        {"issuer": "id.example.com"},
        {"client_id": ""},
        {"rights": {"a": ["boss"]}},
        {"rights": {"a": ["viewer:A B"]}},
        {"rights": {"a": ["viewer:acme*"]}},
        {"right": {}},
    ],
)
def test_issuer_that_cannot_be_meant_is_refused_at_the_start(wrong: dict[str, Any]) -> None:
    given = {"issuer": "https://id.example.com", "client_id": "ratchet", "rights": {"a": ["viewer:support"]}}
    OidcSettings.model_validate(given)
    with pytest.raises(ValidationError):
        OidcSettings.model_validate(given | wrong)
