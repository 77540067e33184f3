"""Suite `tool_calling`: one tool of four, two calls at once, optional and listed arguments, and questions that need no
tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import CallExpected, CallsExpected, Expected, Task
from ratchet.core.evaluation.suites.base import Suite

_MOST_TOKENS = 128
"""Two calls have more than a sentence."""
_TEXT: JsonObject = {"type": "string"}
_NUMBER: JsonObject = {"type": "integer"}


def _tool(name: str, description: str, parameters: Mapping[str, JsonObject], *optional: str) -> JsonObject:
    schema = {
        "type": "object",
        "properties": parameters,
        "required": [parameter for parameter in parameters if parameter not in optional],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


_TOOLS: Sequence[JsonObject] = (
    _tool(
        "get_weather",
        "The weather in a city. Leave out the unit unless it is asked for.",
        {"city": _TEXT, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        "unit",
    ),
    _tool("set_timer", "Start a timer.", {"minutes": _NUMBER}),
    _tool(
        "convert_currency",
        "Convert an amount of money. Currencies are ISO codes such as EUR.",
        {"amount": _NUMBER, "source": _TEXT, "target": _TEXT},
    ),
    _tool("track_order", "Where an order is.", {"order_id": _TEXT}),
)
_CITIES = ("Paris", "Tokyo", "Cairo", "Lima", "Oslo", "Delhi", "Rome", "Quito", "Dublin", "Hanoi")
_MINUTES = (3, 5, 7, 10, 12, 15, 20, 25, 40, 55)
_MONEY = (
    (100, "EUR", "USD"),
    (250, "USD", "JPY"),
    (40, "GBP", "EUR"),
    (1200, "CHF", "EUR"),
    (75, "USD", "CAD"),
    (500, "SEK", "NOK"),
    (60, "AUD", "USD"),
    (900, "INR", "GBP"),
    (15, "EUR", "PLN"),
    (3000, "JPY", "EUR"),
)
_ORDERS = ("A1042", "B2207", "C3391", "D4410", "E5528", "F6603", "G7719", "H8834", "J9056", "K1170")
_WITHOUT = (
    "Thank you, that was all.",
    "What is two plus three?",
    "Say hello to me in Spanish.",
    "Which month comes after May?",
    "What is the opposite of cold?",
    "How many days does a week have?",
    "Write one sentence about the sea.",
    "Which colour do blue and yellow make?",
    "What is the plural of mouse?",
    "Who wrote Romeo and Juliet?",
)


def _tasks() -> Sequence[Task]:
    tens = range(10)
    weather = [_call("get_weather", city=city) for city in _CITIES]
    fahrenheit = [_call("get_weather", city=city, unit="fahrenheit") for city in _CITIES]
    timers = [_call("set_timer", minutes=minutes) for minutes in _MINUTES]
    money = [_call("convert_currency", amount=amount, source=one, target=other) for amount, one, other in _MONEY]
    orders = [_call("track_order", order_id=order) for order in _ORDERS]
    return [
        task
        for n in tens
        for task in (
            _task(f"weather-{n}", f"What is the weather in {_CITIES[n]}?", weather[n]),
            _task(f"unit-{n}", f"What is the weather in {_CITIES[n]} in fahrenheit?", fahrenheit[n]),
            _task(f"timer-{n}", f"Wake me in {_MINUTES[n]} minutes.", timers[n]),
            _task(f"money-{n}", "How much are {} {} in {}?".format(*_MONEY[n]), money[n]),
            _task(f"order-{n}", f"Where is my order {_ORDERS[n]}?", orders[n]),
            _task(
                f"cities-{n}",
                f"Compare the weather in {_CITIES[n]} and {_CITIES[n - 1]}.",
                weather[n],
                weather[n - 1],
            ),
            _task(
                f"both-{n}",
                f"Set a timer of {_MINUTES[n]} minutes and tell me where order {_ORDERS[n]} is.",
                timers[n],
                orders[n],
            ),
            _task(f"none-{n}", _WITHOUT[n]),
            _task(f"told-{n}", f"The weather in {_CITIES[n]} is fine today. Say that you are glad; look nothing up."),
            _task(f"code-{n}", f"My order has the code {_ORDERS[n]}, and it arrived. Nothing else, thanks!"),
        )
    ]


def _call(name: str, **arguments: Any) -> CallExpected:  # `Any`: values of JSON
    return CallExpected(name=name, arguments=arguments)


def _task(name: str, words: str, *calls: CallExpected) -> Task:
    return Task(
        id=name,
        messages=[{"role": "user", "content": words}],
        tools=_TOOLS,
        expect=Expected(tool_calls=CallsExpected(calls=[*calls])),
        max_tokens=_MOST_TOKENS,
    )


SUITE = Suite(
    summary="Requests for one tool, for two, and for none: the answer calls these with their arguments, and no other.",
    task_type="tool_calling",
    tasks=_tasks,
)
