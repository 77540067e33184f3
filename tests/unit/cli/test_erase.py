"""`ratchet erase` and `ratchet optout`: whom they name, and what they say of what they did."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.erase import of_receipt
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.contract.http.gateway import OptOutTaken
from ratchet.core.errors import Rejected
from ratchet.core.rules.texts import user_ref
from ratchet.core.service.asgi import Answer, Handler, Request, json_response
from tests.support.running import listening

REF = user_ref("the key", "mia@example.com") or ""
NOT_TAKEN = "`ratchet optout add --user NAME` prints the ref"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--user mia@example.com", NOT_TAKEN),
        ("--user mia", NOT_TAKEN),
        (f"--user {REF[:-1]}", NOT_TAKEN),
        ("--user-name mia@example.com", "--user-name needs RATCHET_GATEWAY_USER_KEY"),
        (f"--user {REF}", "no stack runs"),
        ("--session mia@example.com", "no stack runs"),
    ],
)
def test_erasing_a_user_takes_the_ref_or_a_name_with_the_key(
    words: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["erase", *words.split(), "--dir", str(tmp_path)])
    assert (code != ExitCode.DONE, reason in " ".join(capsys.readouterr().err.split())) == (True, True)


async def test_name_is_hashed_with_the_key_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def coordinator(*_: str) -> Handler:
        async def answer(request: Request) -> Answer:
            asked.append(request.record())
            return json_response({}, 400)

        return answer

    async with listening(coordinator) as url:
        monkeypatch.setenv("RATCHET_COORDINATOR_URL", url)
        monkeypatch.setenv("RATCHET_GATEWAY_USER_KEY", "the key")
        await asyncio.to_thread(main, ["erase", "--user-name", "mia@example.com", "--dir", str(tmp_path)])
    assert [(body["kind"], body["ref"]) for body in asked] == [("user", REF)]


def test_receipt_is_read_as_it_is_kept_and_as_it_is_printed(tmp_path: Path) -> None:
    text = '{"erasure": {"kind": "session", "ref": "s-1"}, "unreachable": []}'
    signed = {"receipt": text, "signature": "s", "public_key": "k"}
    path = tmp_path / "receipt.json"
    for document in (signed, {"erasure": {}, "receipt": signed}):
        path.write_text(json.dumps(document))
        assert of_receipt(path) == {"kind": "session", "ref": "s-1", "role": None, "receipt": signed}
    for other in ("[]", "{}", '{"receipt": 1}', '{"receipt": {"receipt": "{}"}}'):
        path.write_text(other)
        with pytest.raises(Rejected, match="is no receipt of an erasure"):
            of_receipt(path)


@pytest.mark.parametrize(
    ("command", "was", "now", "code", "words"),
    [
        ("add", False, True, ExitCode.DONE, f"`ratchet erase --user` takes: {REF}"),
        ("remove", True, False, ExitCode.DONE, "the user is recorded again in support"),
        ("remove", True, True, ExitCode.PARTLY, "has opted out in every role, and so in support: leave --role out"),
        ("remove", False, False, ExitCode.PARTLY, "nothing changes: the gateway does not know"),
    ],
)
async def test_opting_out_and_in_names_what_it_changed(
    command: str,
    was: bool,
    now: bool,
    code: ExitCode,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def gateway(method: str, path: str) -> Handler:
        assert (method, path) == ("POST", "/v1/opt-outs" if command == "add" else "/v1/opt-ins")

        async def answer(request: Request) -> Answer:
            assert request.record() == {"user": "mia@example.com", "role": "support"}
            taken = OptOutTaken(key="k", kind="user", ref=REF, role="support", opted_out=now, was_opted_out=was)
            return json_response(taken, 202)

        return answer

    async with listening(gateway) as url:
        monkeypatch.setenv("RATCHET_GATEWAY_URL", url)
        line = ["optout", command, "--user", "mia@example.com", "--role", "support", "--dir", str(tmp_path)]
        assert await asyncio.to_thread(main, line) == code
    assert words in " ".join(capsys.readouterr().out.split())
