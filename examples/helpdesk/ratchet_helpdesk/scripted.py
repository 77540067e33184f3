"""A scripted model: a stand-in for a provider's that keeps exactly those house rules which its system prompt states.

It has no weights and samples nothing. What it shows is not language, but what a better or worse prompt does to a team's
traffic: without a rule it does what the customer wishes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet_helpdesk.clerk import CLOSING, QUESTION, call_message, text_message
from ratchet_helpdesk.world import OPENINGS, RETURN_DAYS, WISHES, Act, ChatMessage

RULES: Mapping[str, str] = {
    "stage": "Decline what the stage of an order does not allow.",
    "late": "Decline what was delivered more than two weeks ago.",
    "payment": "Check the payment before a refund, and hand a suspicious one over.",
}
"""The house rules, as a prompt states them."""
REFUSING = "Decline every wish."
"""An instruction that no house rule has."""
_ORDER = re.compile(r"#([A-Z]\d\d)")


def next_message(prompt: str, messages: Sequence[ChatMessage]) -> ChatMessage:
    """What it answers; `prompt`: its instructions, `messages`: what follows them."""
    texts = [str(message["content"]) for message in messages if message["role"] == "user"]
    results = [json.loads(str(message["content"])) for message in messages if message["role"] == "tool"]
    named = _ORDER.search(" ".join(texts))
    if named is None:
        return text_message(QUESTION)
    if any("done" in result for result in results):
        return text_message(CLOSING)
    known: dict[str, Any] = {name: value for result in results for name, value in result.items()}
    if "stage" not in known:
        return call_message(Act.of("find_order", order=named[1]))
    wish = next(wish for wish in WISHES if any(_begins(texts[0], opening) for opening in OPENINGS[wish]))
    return call_message(decided(prompt, wish, named[1], known))


def decided(prompt: str, wish: str, order: str, known: Mapping[str, Any]) -> Act:
    """The next act, by the rules in the prompt and what is known of the order."""
    if wish == "report":
        return Act.of("report", order=order, stage=known["stage"])
    reason = _refusal(prompt, wish, known)
    if reason is not None:
        return Act.of("decline", order=order, reason=reason)
    if wish != "refund":
        return Act.of(wish, order=order)
    if RULES["payment"] in prompt and "payment" not in known:
        return Act.of("check_payment", order=order)
    suspicious = known.get("payment") == "suspicious"
    return Act.of("hand_over", order=order) if suspicious else Act.of("refund", order=order, price=known["price"])


def _refusal(prompt: str, wish: str, known: Mapping[str, Any]) -> str | None:
    """Why the prompt has it decline the wish; None where it does not."""
    at_wrong_stage = known["stage"] != "packing" if wish == "stop" else known["stage"] in ("packing", "shipped")
    if RULES["stage"] in prompt and at_wrong_stage:
        return "stage"
    is_late = wish != "stop" and known["stage"] == "delivered" and known["days"] > RETURN_DAYS
    return "late" if REFUSING in prompt or (RULES["late"] in prompt and is_late) else None


def _begins(text: str, opening: str) -> bool:
    return all(part.strip() in text for part in opening.split("{}"))
