"""Agents take tickets from one pile, try each as often as they should, and report what the world verified."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import httpx
import openai
import pytest

from ratchet.local.demo.plan import DEMO
from ratchet_helpdesk import BAD_DOMAIN, DOMAIN
from ratchet_helpdesk.agent import Agent, in_parallel
from ratchet_helpdesk.agents import PATIENCE_S, Pile, Tally, Worker, end_of
from ratchet_helpdesk.clerk import EXPERT, play
from ratchet_helpdesk.logbook import bad_tickets, drills, tickets
from ratchet_helpdesk.world import TRAIN, Task, draw_tasks, kind_of


def test_a_limited_pile_holds_every_ticket_as_often_as_it_is_tried() -> None:
    drawn = list(Pile(3, 20, 4))
    assert Counter(task.task_id for task in drawn) == Counter({task.task_id: 4 for task in draw_tasks(TRAIN, 20, 3)})


def test_an_endless_pile_repeats_no_ticket_beyond_its_tries() -> None:
    drawn = list(islice(Pile(3, None, 4, block=5), 60))
    assert set(Counter(task.task_id for task in drawn).values()) == {4}


def test_a_closed_pile_gives_nothing_more() -> None:
    pile = iter(pile_of := Pile(3, None, 2))
    next(pile)
    pile_of.close()
    assert list(pile) == []


async def test_agents_share_the_pile_and_every_ticket_is_worked_on_once() -> None:
    tasks = draw_tasks(TRAIN, 30, 0)
    done: list[Task] = []

    async def work(task: Task) -> None:
        done.append(task)

    await in_parallel(4, iter(tasks), work)
    assert done == tasks


async def test_the_first_error_of_an_agent_is_the_error_of_all() -> None:
    async def work(task: Task) -> None:
        raise LookupError(task.task_id)

    with pytest.raises(LookupError, match="train-0-"):
        await in_parallel(3, iter(draw_tasks(TRAIN, 30, 0)), work)


async def test_agents_give_up_after_a_while_without_an_answer_and_not_before() -> None:
    answer = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hm."}}]}
    now, answers = 0.0, False

    def gateway(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=answer) if answers else httpx.Response(503)

    (task,) = draw_tasks(TRAIN, 1, 0)
    async with httpx.AsyncClient(transport=httpx.MockTransport(gateway)) as http:
        client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="none", max_retries=0, http_client=http)
        worker = Worker(Agent(client, "support"), Tally(), now=lambda: now)
        await worker.work(task)
        now = PATIENCE_S - 1
        await worker.work(task)
        answers = True
        await worker.work(task)
        answers, now = False, now + PATIENCE_S - 1
        await worker.work(task)
        now += 1
        with pytest.raises(openai.InternalServerError):
            await worker.work(task)
    assert (worker.tally.errors, worker.tally.trajectories) == (4, 1)


def test_end_of_a_trajectory_carries_the_verified_outcome_and_its_group() -> None:
    (task,) = draw_tasks(TRAIN, 1, 0)
    played = play(task, EXPERT, random.Random(0))
    body = end_of(task, played.verdict)
    assert body["outcome"] == {"status": "success", "score": 1.0, "verified_by": "environment"}
    assert (body["task"]["task_id"], body["task"]["group_key"]) == (task.task_id, task.task_id)
    assert body["task"]["domain"] == "customer_service"


def test_end_of_a_trajectory_names_the_ticket_as_session_and_its_kind() -> None:
    (task,) = draw_tasks(TRAIN, 1, 0)
    body = end_of(task, play(task, EXPERT, random.Random(0)).verdict)
    assert (body["session_id"], body["labels"]["task_type"]) == (task.task_id, kind_of(task))


def test_the_log_book_is_the_same_every_time_and_as_long_as_planned() -> None:
    first, again = list(tickets(DEMO.tickets.examples, DEMO.seed)), list(tickets(DEMO.tickets.examples, DEMO.seed))
    assert first == again
    assert len(first) == DEMO.tickets.examples
    assert len(list(bad_tickets(DEMO.bad.examples, DEMO.seed))) == DEMO.bad.examples


def test_the_bad_policy_s_tickets_are_apart_from_the_clerk_s() -> None:
    assert {ticket.domain for ticket in tickets(DEMO.tickets.examples, DEMO.seed)} == {DOMAIN}
    assert {ticket.domain for ticket in bad_tickets(DEMO.bad.examples, DEMO.seed)} == {BAD_DOMAIN}
    assert {drill.domain for drill in drills(50, DEMO.seed)} == {DOMAIN}


def test_the_clerk_never_saw_the_tickets_that_agents_train_on() -> None:
    clerk = {ticket.task_id.removeprefix("clerk-") for ticket in tickets(DEMO.tickets.examples, DEMO.seed)}
    agents = {task.task_id for seed in range(90, 140) for task in draw_tasks(TRAIN, 20, seed)}
    assert not clerk & agents
