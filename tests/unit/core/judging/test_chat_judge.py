"""A judge behind OpenAI's API: asked again, cached, paid; rubbish, silence and floods are no verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from ratchet.core.errors import BadRequest, Forbidden, Unavailable
from ratchet.core.judging.chat_judge import MOST_TOKENS, ChatJudge
from ratchet.core.judging.profile import JudgeProfile
from ratchet.core.judging.questions import CHARACTERS
from ratchet.core.judging.settings import JudgeSettings
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.core.service.paid_client import PaidClient
from tests.support.judges import JudgeServer, KeptAnswers, Purse, judge_of

GOOD = "Right, and brief.\nSCORE: 0.75"


async def test_judge_gives_a_score_and_its_reasons() -> None:
    async with judge_of(JudgeServer([GOOD])) as (judge, _):
        verdict = await judge.score("[user]\nWhere is it?")
    assert verdict is not None
    assert (verdict.score, verdict.words, verdict.by) == (0.75, "Right, and brief.", "big-2026")


async def test_last_word_of_a_reply_is_its_preference() -> None:
    script = JudgeServer(["A", "B is shorter, but wrong.\n\nA", "TIE", "Neither.", None, "B"])
    async with judge_of(script) as (judge, _):
        answers = [(await judge.compare("p", "one", "other")).prefers_first for _ in range(6)]
    assert answers == [True, True, None, None, None, False]
    first = script.asked[0]
    assert (judge.name, first["model"], first["temperature"]) == ("big", "big", 0)
    assert first["messages"][1]["content"].index("one") < first["messages"][1]["content"].index("other")


async def test_judge_that_fails_now_and_then_is_asked_again() -> None:
    async with judge_of(JudgeServer(["A", 429, 503, "B", 500, 500, 500])) as (judge, _):
        assert (await judge.compare("p", "one", "other")).prefers_first is True
        assert (await judge.compare("p", "one", "other")).prefers_first is False
        with pytest.raises(Unavailable, match="slowly, please"):
            await judge.compare("p", "one", "other")


async def test_model_that_reasons_is_asked_as_it_likes() -> None:
    script = JudgeServer(["SCORE: 1", "SCORE: 0"], refuses=("temperature", "max_tokens"))
    async with judge_of(script) as (judge, _):
        scores = [verdict.score for name in "ab" if (verdict := await judge.score(name))]
    assert scores == [1.0, 0.0]
    assert [("temperature" in one, "max_tokens" in one) for one in script.asked] == [
        (True, True),
        (False, True),
        (False, False),
        (False, False),
    ]
    assert script.asked[-1]["max_completion_tokens"] == MOST_TOKENS


async def test_refusal_of_a_text_is_no_refusal_of_all() -> None:
    async with judge_of(JudgeServer([400, 422, 403])) as (judge, _):
        for kind in (BadRequest, BadRequest, Forbidden):
            with pytest.raises(kind) as caught:
                await judge.score("work")
            assert isinstance(caught.value, BadRequest) is (kind is BadRequest)


async def test_judge_that_never_answered_is_asked_once() -> None:
    async with judge_of(script := JudgeServer([503, "A"])) as (judge, _):
        with pytest.raises(Unavailable):
            await judge.compare("p", "one", "other")
    assert len(script.asked) == 1


async def test_judge_that_hangs_is_left_and_charged_in_full() -> None:
    async with judge_of(JudgeServer([], hangs=True), timeout_s=0.2) as (judge, purse):
        with pytest.raises(Unavailable, match="does not answer"):
            await judge.score("work")
    assert purse.used == purse.reserved


async def test_judge_that_drips_is_left_after_its_time() -> None:
    async with dripping() as url, AsyncApiClient(Peer("the judge", url, timeout_s=0.5)) as http:
        judge = ChatJudge(PaidClient(http, purse := Purse(), None), JudgeProfile("big"))
        with pytest.raises(Unavailable, match="does not answer"):
            await judge.score("work")
    assert purse.used == purse.reserved


@asynccontextmanager
async def dripping() -> AsyncGenerator[str]:
    """A server whose answer comes byte by byte, and never to its end."""
    left = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n")
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        left.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        await left.wait()
    finally:
        server.close()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_judge_that_redirects_is_not_followed_and_is_away(status: int) -> None:
    async with judge_of(script := JudgeServer([status])) as (judge, purse):
        with pytest.raises(Unavailable, match=f"answered {status}"):
            await judge.score("work")
    assert (len(script.asked), purse.used) == (1, purse.reserved)


async def test_answer_of_ten_megabytes_is_not_read_to_its_end() -> None:
    async with judge_of(JudgeServer(["x" * 10_000_000])) as (judge, purse):
        with pytest.raises(Unavailable, match="answers with more than"):
            await judge.score("work")
    assert purse.used == purse.reserved


async def test_long_reply_keeps_its_verdict_and_few_words() -> None:
    answers = KeptAnswers()
    async with judge_of(JudgeServer(["x" * 900_000 + "\nSCORE: 0.5"]), answers=answers) as (judge, _):
        verdict = await judge.score("work")
    assert verdict is not None
    assert verdict.score == 0.5
    assert [len(answer.text) for answer in answers.values()] == [CHARACTERS]


async def test_rubbish_is_no_verdict_and_is_not_paid_twice() -> None:
    answers, script = KeptAnswers(), JudgeServer(["SCORE: NaN"])
    async with judge_of(script, answers=answers) as (judge, _):
        assert [await judge.score("work"), await judge.score("work")] == [None, None]
    assert len(script.asked) == 1


async def test_question_is_paid_once_and_another_rubric_is_another_question() -> None:
    answers = KeptAnswers()
    for rubric, questions in (("Be brief.", 1), ("Be brief.", 0), ("Be kind.", 1)):
        script = JudgeServer([GOOD])
        async with judge_of(script, JudgeProfile("big", rubric, url="same"), answers) as (judge, _):
            assert (await judge.score("work")) is not None
        assert len(script.asked) == questions


async def test_words_are_kept_without_secrets() -> None:
    answers = KeptAnswers()
    async with judge_of(JudgeServer(["It gave away mia@example.com.\nSCORE: 0"]), answers=answers) as (judge, _):
        verdict = await judge.score("work")
    assert verdict is not None
    assert verdict.words == "It gave away [REDACTED:email]."
    assert "mia@" not in str(answers)


@pytest.mark.parametrize("used", [(-1_000_000, 10), (90, -10), (0, 10), (90, 0), (0, 0), None])
async def test_usage_that_cannot_be_is_charged_in_full(used: tuple[int, int] | None) -> None:
    usage = None if used is None else {"prompt_tokens": used[0], "completion_tokens": used[1]}
    async with judge_of(JudgeServer([GOOD], usage=usage)) as (judge, purse):
        await judge.score("work")
    assert purse.used == purse.reserved


async def test_unused_tokens_are_given_back() -> None:
    async with judge_of(JudgeServer([GOOD], usage={"prompt_tokens": 90, "completion_tokens": 10})) as (judge, purse):
        await judge.score("work")
    assert [used.tokens for used in purse.used] == [100]
    assert purse.reserved[0].tokens > 512


async def test_usage_beyond_what_was_reserved_is_charged_as_reported() -> None:
    usage = {"prompt_tokens": 10**9, "completion_tokens": 10}
    async with judge_of(JudgeServer([GOOD], usage=usage)) as (judge, purse):
        assert await judge.score("work") is not None
    assert [used.tokens for used in purse.used] == [10**9 + 10]


def test_other_server_gets_no_key_of_the_gateway() -> None:
    elsewhere = JudgeSettings(model="big", url="http://127.0.0.1:1/v1")
    assert "authorization" not in elsewhere.peer("http://gateway", "our-key", {}).headers
    peer = JudgeSettings(model="big").peer("http://gateway/", "our-key", {})
    assert (peer.url, peer.headers["authorization"]) == ("http://gateway/v1", "Bearer our-key")
    assert peer.headers["x-ratchet-arm"] == "pinned"


def test_judge_has_a_new_digest_with_every_change() -> None:
    profiles = [JudgeProfile("a"), JudgeProfile("b"), JudgeProfile("a", "kind"), JudgeProfile("a", tries=1)]
    assert len({profile.digest for profile in profiles}) == len(profiles)
    with pytest.raises(ValueError, match="usd_per_day counts nothing"):
        JudgeSettings(model="big", usd_per_day=1.0)
