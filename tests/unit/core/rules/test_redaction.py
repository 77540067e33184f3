"""Redaction takes secrets out and leaves the rest alone; it is idempotent and linear, and fails closed."""

from __future__ import annotations

import json
import sysconfig
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract.trajectory import Action, Quality
from ratchet.core.contract.workflows import Plan, SubTask
from ratchet.core.errors import Rejected
from ratchet.core.rules.redaction import MAX_DEPTH, MAX_SECRETS, Redacted, redact, redact_message
from ratchet.core.rules.redaction.kinds import KINDS, Kind
from ratchet.core.rules.redaction.search import spans_in
from tests.support.executions import execution
from tests.support.hostile import HOSTILE_TEXTS, OFF_UNICODE
from tests.support.messages import trajectory
from tests.support.real_data import AIRLINE, needs_real_data
from tests.support.secret_corpus import SIZE, Plant, corpus, every_plant

PRIVATE_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"

SECRETS = {
    "mail mia.li3818+x@mail.example.co.uk, please": "mail [REDACTED:email], please",
    "josé@exämple.com": "[REDACTED:email]",
    "key sk-proj-abcdefgh12345678ABCD ok": "key [REDACTED:api_key] ok",
    "AKIAIOSFODNN7EXAMPLE": "[REDACTED:api_key]",
    "ghp_0123456789abcdefghijABCDEFGHIJ": "[REDACTED:api_key]",
    "OPENAI_API_KEY=sk-abcdefgh12345678ABCD": "OPENAI_API_KEY=[REDACTED:api_key]",
    'api_key: "a1b2c3d4e5"': 'api_key: "[REDACTED:secret]"',
    "Authorization: Bearer abc123def456": "Authorization: Bearer [REDACTED:token]",
    "authorization: Basic dXNlcjpwYXNz": "authorization: Basic [REDACTED:secret]",
    f"jwt {JWT}.": "jwt [REDACTED:token].",
    f"before\n{PRIVATE_KEY}\nafter": "before\n[REDACTED:private_key]\nafter",
    "cut off -----BEGIN PRIVATE KEY-----\nMIIE": "cut off [REDACTED:private_key]",
    "password=hunter2&next=1": "password=[REDACTED:password]&next=1",
    "Passwd: hunter2, thanks": "Passwd: [REDACTED:password], thanks",
    "PGPASSWORD='two words' psql": "PGPASSWORD='[REDACTED:password]' psql",
    'password := "a\\"b"': 'password := "[REDACTED:password]"',
    "{'password': 'hunter2'}": "{'password': '[REDACTED:password]'}",
    r"{\"password\": \"hunter2\", cut": r"{\"password\": \"[REDACTED:password]\", cut",
    "postgres://ada:lovelace@db/x": "postgres://ada:[REDACTED:password]@db/x",
    "call +44 20 7946 0958 now": "call [REDACTED:phone] now",
    "call (415) 555-0123 or 415-555-0123": "call [REDACTED:phone] or [REDACTED:phone]",
    "card 4111 1111 1111 1111 12/27": "card [REDACTED:card] 12/27",
    "7+ada@users.noreply.github.com, anoreply@x.org": "[REDACTED:email], [REDACTED:email]",
    "card 378282246310005": "card [REDACTED:card]",
}

HARMLESS = [
    "order #W2378156, reservation NO6JO3, item 1656367028, credit_card_4421486, flight HAT136",
    "d4de4ccf-7cd2-4ee3-8b3a-fb35c8ef8e32 019a1c6e-4111-7111-8111-111111111111",
    "4a02dcbc0e3ace4d398988d60a33e73afad4d201deb426303159f086cadad20f",
    "2024-05-15 15:00:00 EST, 2024-05-15T15:00:00.123456Z, 1763690107123456789",
    "4111111111111112 fails the check digit; 0.4111111111111111 is a fraction",
    "a bearer of good news; the risk-assessment-of-the-year; sk-learn-is-a-library-name",
    "git@github.com:ada/engine.git, lodash@4.17.21, @decorator, a @ b.com",
    "Co-Authored-By: Claude <noreply@anthropic.com>, No-Reply@shop.example: neither takes mail",
    "forgot the password? the password is not shown. max_tokens: 4096, keyword: value1234",
    "+1 -2 +3, (1 + 2) * 345-6789",
    "token: 42 used, secret: none, usage {'prompt_tokens': 123456789}",
    "[REDACTED:email] password=[REDACTED:password]",
]


def left_of(value: Any) -> Any:
    return redact(value).value


@pytest.mark.parametrize(("text", "left"), SECRETS.items())
def test_a_secret_is_recognised_by_its_form(text: str, left: str) -> None:
    assert left_of(text) == left


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_that_only_resembles_a_secret_stays(text: str) -> None:
    assert redact(text).counts == {}
    assert left_of(text) == text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("password", "password"),
        ("newPassword", "password"),
        ("db_passwd", "password"),
        ("api-key", "secret"),
        ("apiKey", "secret"),
        ("Authorization", "secret"),
        ("aws_secret_access_key", "secret"),
        ("refresh_token", "secret"),
    ],
)
def test_a_secret_in_any_form_is_recognised_by_its_name(name: str, kind: str) -> None:
    assert left_of({name: "swordfish"}) == {name: f"[REDACTED:{kind}]"}
    assert left_of({name: [1234, "x"]}) == {name: [f"[REDACTED:{kind}]"] * 2}


@pytest.mark.parametrize("name", ["token", "total_tokens", "max_tokens", "keyword", "primary_key", "passenger"])
def test_ordinary_names_keep_their_values(name: str) -> None:
    assert left_of({name: "swordfish"}) == {name: "swordfish"}


def test_a_tools_schema_for_a_password_stays_a_schema() -> None:
    schema = {"properties": {"password": {"type": "string", "description": "of the user"}}, "required": ["password"]}
    assert left_of(schema) == schema


def test_counts_are_by_kind() -> None:
    redacted = redact([{"a": "a@b.de and c@d.de", "password": "x"}, "4111111111111111", "4111111111111111"])
    assert redacted.counts == {"email": 2, "password": 1, "card": 2}


def test_instants_that_an_agent_passes_are_text_to_the_search() -> None:
    born = datetime(1980, 1, 2, tzinfo=UTC)
    action = Action(type="tool_call", tool_args={"password": born, "calls": {born: "+49 170 1234567"}, "at": [born]})
    entry = msgspec.structs.replace(trajectory().turns[0], action=action)
    safe = redact_message(trajectory(turns=[entry]))[0].turns[0].action.tool_args
    text = "1980-01-02T00:00:00Z"
    assert safe == {"password": "[REDACTED:password]", "calls": {text: "[REDACTED:phone]"}, "at": [text]}


def test_typed_numbers_stay_numbers_and_free_ones_that_are_cards_do_not() -> None:
    card = 4111111111111111
    entry = msgspec.structs.replace(trajectory().turns[0], action=Action(type="tool_call", tool_args={"n": [card]}))
    message = trajectory(quality=Quality(tests_total=card), turns=[entry], labels={"card": card})
    safe, counts = redact_message(message)
    assert (safe.quality, safe.turns[0].timestamp) == (message.quality, entry.timestamp)
    assert (safe.labels, safe.turns[0].action.tool_args) == ({"card": "[REDACTED:card]"}, {"n": ["[REDACTED:card]"]})
    assert counts == {"card": 2}
    assert left_of('{"n": 4111111111111111}') == '{"n": "[REDACTED:card]"}'


@pytest.mark.parametrize("text", [*HOSTILE_TEXTS, *OFF_UNICODE])
def test_every_text_is_redacted_and_stays_publishable(text: str) -> None:
    redacted = redact({"a": text, text: [text, {"password": text}]})
    assert isinstance(redacted.value, dict)
    if text not in OFF_UNICODE:
        assert msgspec.json.decode(msgspec.json.encode(redacted.value)) == redacted.value


def test_text_in_which_search_does_not_end_costs_itself_and_no_neighbour() -> None:
    deep = '{"a":' * 150 + '{"secret": "x"}' + "}" * 150
    many = "mail a@b.de " * (MAX_SECRETS + 1)
    redacted = redact({"deep": deep, "many": many, "many, spelled": json.dumps([many]), "fine": "a@b.de"})
    placeholder = "[REDACTED:unsearchable]"
    assert redacted.value == {
        "deep": placeholder,
        "many": placeholder,
        "many, spelled": placeholder,
        "fine": "[REDACTED:email]",
    }
    assert redacted.counts == {"unsearchable": 3, "email": 1}


def test_text_beside_half_a_surrogate_pair_is_redacted_as_valid_json() -> None:
    left = left_of('{"é": "\\ud800", "password": "x"}')
    assert json.loads(left) == {"é": "\ud800", "password": "[REDACTED:password]"}
    left.encode()


def test_a_number_of_any_length_is_read() -> None:
    assert left_of({"n": 10**5000}) == {"n": 10**5000}


def test_empty_and_other_values_stay() -> None:
    value = {"password": "", "secret": None, "pwd": True, "n": 1.5, "list": [], "object": {}}
    assert left_of(value) == value


def test_json_inside_text_stays_json() -> None:
    arguments = (
        '{"email": "mia@example.com", "note": "say \\"hi\\"", "n": 1, "password": 7, "deep": "{\\"pwd\\":\\"x\\"}"}'
    )
    left = json.loads(left_of(arguments))
    assert left == {
        "email": "[REDACTED:email]",
        "note": 'say "hi"',
        "n": 1,
        "password": "[REDACTED:password]",
        "deep": '{"pwd":"[REDACTED:password]"}',
    }


def test_json_without_secrets_is_left_verbatim() -> None:
    text = '{"a" :  1.0, "b": [ ] , "big": 12345678901234567890123}'
    assert left_of(text) == text


def test_a_value_hidden_behind_a_repeated_name_is_redacted() -> None:
    assert "mia@example.com" not in left_of('{"a": "mia@example.com", "a": 1}')


def test_names_are_searched_too_and_no_member_is_lost() -> None:
    assert left_of({"a@b.de": 1, "c@d.de": 2}) == {"[REDACTED:email]": 1, "[REDACTED:email] 2": 2}


@pytest.mark.parametrize("value", [object(), {1: "x"}, b"bytes", {"a": {2}}])
def test_a_value_that_is_not_json_is_refused(value: object) -> None:
    with pytest.raises(Rejected, match="cannot redact"):
        left_of(value)


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: Any = "a@b.de"
    for _ in range(MAX_DEPTH):
        value = [value]
    with pytest.raises(Rejected, match="levels deep"):
        left_of(value)


pieces = st.sampled_from(
    [*SECRETS, *HARMLESS, "password", "=", " ", ".", "@", '"', "\\", "[", "]", "+", "4111", "-", "sk-"]
)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.lists(pieces, max_size=5).map("".join) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "password", "api_key", "x@y.de"]), inner, max_size=3)
        | inner.map(json.dumps)
    ),
    max_leaves=8,
)


@given(st.text("0123456789" * 3 + "abcdef", min_size=32, max_size=32))
def test_id_that_is_not_searched_holds_nothing(digits: str) -> None:
    made = str(UUID(digits))
    assert digits.isdigit() or not spans_in(made)


@given(documents)
def test_redacting_twice_changes_nothing_more(document: Any) -> None:
    once = left_of(document)
    again = redact(once)
    assert (again.value, again.counts) == (once, {})


PATHOLOGICAL = {
    "one letter": "a" * 100_000,
    "ats": "a@" * 50_000,
    "labels": "a@" + "a." * 50_000,
    "keys that never end": "-----BEGIN RSA PRIVATE KEY-----" * 3_000,
    "ends that never end": "-----BEGIN PRIVATE KEY-----" + "-----EN" * 14_000,
    "web tokens": "eyJ" * 33_000,
    "web tokens of long runs": ("eyJ" * 2_000 + ". ") * 40,
    "api keys": "sk-" * 33_000,
    "digits": "1" * 100_000,
    "groups": "1234 " * 20_000,
    "phones": "+1-2-3-4-5-6-7-8-" * 6_000,
    "passwords": "password" * 12_500,
    "placeholders": "password=[REDACTED:" * 5_000,
    "backslashes": "password" + "\\" * 100_000,
    "urls": "://a:" * 20_000,
    "brackets": "[{" * 50_000,
    "blanks": "password" + " " * 100_000,
    "names on one line": "token=a " * 50_000,
    "short runs of letters": "ABCDEFGHIJKLMNOPQRS " * 15_000,
}


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_time_is_linear_also_for_hostile_text(name: str) -> None:
    started = time.process_time()
    left_of(PATHOLOGICAL[name])
    # Alone it takes at most 1 s, and most of them 0.1 s; quadratic time would be 6 s to minutes.
    assert time.process_time() - started < 3.0


@needs_real_data
def test_in_real_conversations_exactly_the_addresses_are_redacted() -> None:
    text = AIRLINE.read_text()
    redacted = redact(json.loads(text))
    assert redacted.counts == {"email": text.count("@")} == {"email": 81}


def test_a_picture_is_not_searched_and_a_secret_that_looks_like_one_is() -> None:
    picture = "data:image/png;base64," + "AKIAIOSFODNN7EXAMPLE" * 100 + "=="
    assert redact({"url": picture}) == Redacted({"url": picture})
    fake = redact({"url": "data:image/png;base64,AKIAIOSFODNN7EXAMPLE"})
    assert fake.counts
    longer = redact({"url": picture + " AKIAIOSFODNN7EXAMPLE"})
    assert longer.counts


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.title)
def test_no_example_of_a_kind_survives_in_any_wrapping(kind: Kind) -> None:
    plants = [plant for plant in every_plant() if plant.label.startswith(f"{kind.title} / ")]
    assert plants
    assert [plant.label for plant in plants if survives(plant)] == []


def test_no_value_beside_its_name_survives_in_any_way_of_writing() -> None:
    titles = tuple(f"{kind.title} / " for kind in KINDS)
    plants = [plant for plant in every_plant() if not plant.label.startswith(titles)]
    assert len(plants) > 900
    assert [plant.label for plant in plants if survives(plant)] == []


def test_the_corpus_holds_every_kind_once_and_the_same_plants_each_time() -> None:
    labels = [plant.label for plant in corpus()]
    assert len(set(labels)) == len(labels) == SIZE
    assert labels == [plant.label for plant in corpus()]
    assert {kind.title for kind in KINDS} <= {label.partition(" / ")[0] for label in labels}


CODE = [
    "pwd = os.getcwd()",
    "password: str",
    "password: SecretStr = Field(default=None)",
    "HAVE_STRUCT_PASSWD_PW_GECOS: 1",
    "RATCHET_S3_SECRET_KEY: os.environ['KEY']",
    "token = next(tokens)",
    "key = row[0]; secret = self.secret",
    "connect(password=password, token=token1)",
    "if token == '=': pass",
    "const apiKey = process.env.API_KEY;",
    "password: ${DB_PASSWORD}",
    "password = getpass('Enter your password: ')",
    'fetch(url, {credentials: "omit"})',
    '{"password": {"type": "string", "description": "of the user"}}',
    "max_tokens: 4096, eos_token: 128009, key_id: a1b2c3d4e5f6g7h8",
    '"api_key_env": "OPENAI_API_KEY"',
]


@pytest.mark.parametrize("text", CODE)
def test_code_that_names_no_literal_stays(text: str) -> None:
    assert left_of(text) == text


def test_the_standard_library_is_no_secret() -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-f]*.py"))
    changed = {path.name: redact(path.read_text(errors="replace")).counts.keys() - {"email"} for path in files}
    assert {name: kinds for name, kinds in changed.items() if kinds} == {}


def test_numbers_of_ids_and_fractions_are_no_cards() -> None:
    value = {"order_id": "4111111111111111", "tool_args": {"id": 4111111111111111, "x": 0.4111111111111111}}
    assert redact(value).counts == {}
    assert redact('{"order_id":4111111111111111,"sha":"a4111111111111111b0c0d0e0f00112233"}').counts == {}


def test_json_stays_json_where_a_number_goes() -> None:
    assert left_of('{"n":4111111111111111,"t":"mia@example.com"}') == '{"n":"[REDACTED:card]","t":"[REDACTED:email]"}'


def survives(plant: Plant) -> bool:
    """Whether what was planted is still there, in whatever spelling."""
    left = json.dumps(left_of(plant.value), ensure_ascii=False)
    return any(trace in left or trace in json.dumps(left, ensure_ascii=False) for trace in plant.traces)


def test_message_with_tuples_is_redacted_inside_them() -> None:
    plan = Plan(sub_tasks=(SubTask(task_type="code", instruction="Mail it to ann@example.com."),), made_by="single")
    safe, counts = redact_message(execution(plan=plan))
    assert safe == execution(plan=redact_message(plan)[0])
    assert safe.plan is not None
    assert (safe.plan.sub_tasks[0].instruction, counts) == ("Mail it to [REDACTED:email].", {"email": 1})
