"""What the filters by rules cost a call, how much later a filtered stream begins, and what they know.

    python -m tests.bench.bench_filters

Milliseconds of a processor for a conversation of 16,000 characters (eight tool results and a question), whose texts
came before and whose texts are all new, and for an answer of 2,000 characters in 500 events; then the share of 100
planted injections that are withheld, by shape, and how many of 200 benign results are.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from ratchet.core.service.asgi import EventStream
from ratchet.dialects.api_dialect import CHAT
from ratchet.gateway.filters.content import content
from ratchet.gateway.filters.injection import injection
from ratchet.gateway.settings import FilterSettings
from tests.support.gateway_alone import Alone, alone, chat_request
from tests.support.planted_injections import HARMFUL, HARMLESS, benign, planted

RULES = FilterSettings(requests=["content"], tool_results=["injection"], answers=["content"])
CALLS = 100


def conversation() -> list[dict[str, Any]]:
    """A question and eight tool results of 2,000 characters, of benign texts."""
    texts, messages = benign(), list[dict[str, Any]]()
    for number in range(8):
        result = "\n".join(texts[40 + number * 20 : 60 + number * 20])
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": (result * 3)[:2000]})
    return [{"role": "user", "content": "What should I tell the customer about the order?"}, *messages]


def answer_events() -> list[bytes]:
    """An answer of 2,000 characters in 500 events."""
    text = " ".join(benign()[44:80])[:2000]
    parts = [text[place : place + 4] for place in range(0, 2000, 4)]
    return [b"data: " + msgspec.json.encode({"choices": [{"index": 0, "delta": {"content": part}}]}) for part in parts]


async def cost_ms(here: Alone, work: Callable[[Any], Any]) -> float:
    """Median processor time of one piece of work on a call, beyond the call itself."""
    opened = await here.completions.calls.open(CHAT, chat_request(messages=conversation()), None)
    spent = list[float]()
    for _ in range(CALLS):
        begun = time.process_time()
        await work(opened)
        spent.append((time.process_time() - begun) * 1000)
    return median(spent)


def new_ms() -> float:
    """Median processor time of the rules on texts that they have not seen."""
    spent = list[float]()
    for _ in range(CALLS):
        begun = time.process_time()
        for message in conversation():
            injection(message["content"])
        spent.append((time.process_time() - begun) * 1000)
    return median(spent)


async def first_ms(here: Alone) -> float:
    """Median time until a stream's first event."""
    spent = list[float]()
    for _ in range(CALLS):
        begun = time.perf_counter()
        response = await here.completions.complete(CHAT, chat_request(stream=True, messages=conversation()), None)
        assert isinstance(response, EventStream)
        await anext(response.events)
        spent.append((time.perf_counter() - begun) * 1000)
        await response.events.aclose()
    return median(spent)


async def measure() -> None:
    """Print the cost."""
    events = answer_events()
    with tempfile.TemporaryDirectory() as folder:
        async with alone(Path(folder), filters={"*": RULES}) as here, alone(Path(folder), filters={}) as plain:
            filtering = here.completions.answering.filtering

            async def stream(call: Any) -> None:
                checked = filtering.stream(call)
                assert checked is not None
                for event in events:
                    await checked.passed([event])

            sys.stdout.write(f"16,000 characters, known     {await cost_ms(here, filtering.request):.2f} ms\n")
            sys.stdout.write(f"16,000 characters, all new   {new_ms():.2f} ms\n")
            sys.stdout.write(f"answer in 500 events         {await cost_ms(here, stream):.2f} ms\n")
            here.server.events = plain.server.events = events
            filtered, unfiltered = await first_ms(here), await first_ms(plain)
            sys.stdout.write(f"first event                  {filtered:.2f} ms, unfiltered {unfiltered:.2f} ms\n")


def report() -> None:
    """Print what the rules know."""
    all_of = Counter(name for name, _ in planted())
    known = Counter(name for name, text in planted() if injection(text))
    taken = [text for text in benign() if injection(text)]
    sys.stdout.write(f"injections withheld          {known.total()} of {all_of.total()}\n")
    sys.stdout.writelines(f"  {name:26s} {known[name]} of {number}\n" for name, number in all_of.items())
    sys.stdout.write(f"benign results withheld      {len(taken)} of {len(benign())}\n")
    sys.stdout.writelines(f"  {text[:100]}\n" for text in taken)
    blocked, wrongly = sum(map(bool, map(content, HARMFUL))), sum(map(bool, map(content, [*HARMLESS, *benign()])))
    sys.stdout.write(f"harmful texts blocked        {blocked} of {len(HARMFUL)}, others {wrongly}\n")


if __name__ == "__main__":
    asyncio.run(measure())
    report()
