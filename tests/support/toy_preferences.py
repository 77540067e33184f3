"""Preferences of a parrot, for tests of `dpo` and `kto`: repeating the colour is better than naming another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

COLOURS = ["red", "green", "blue", "amber", "black", "white", "grey", "pink"]
ASKS = ["Say {}.", "Please say {}.", "Now {}!", "Repeat: {}.", "And {}?", "{}, please."]


def parrot_pairs() -> list[dict[str, Any]]:
    """48 pairs with 48 prompts; six of each colour belong to one group. Behind the prompt's own first answer."""
    return [
        {
            "prompt": prompt,
            "chosen": [{"role": "assistant", "content": f"{colour}!"}],
            "rejected": [{"role": "assistant", "content": f"{COLOURS[(number + 3) % len(COLOURS)]}!"}],
            "group_key": f"{colour}-{index}",
        }
        for number, index, colour, prompt in _prompts()
    ]


def parrot_labels() -> list[dict[str, Any]]:
    """Two answers to each of the 48 prompts, one liked."""
    return [
        {"prompt": pair["prompt"], "completion": pair[side], "label": side == "chosen"}
        for pair in parrot_pairs()
        for side in ("chosen", "rejected")
    ]


def parrot_chats() -> list[list[dict[str, Any]]]:
    """The right conversations, as `sft` learns them."""
    return [[*pair["prompt"], *pair["chosen"]] for pair in parrot_pairs()]


def _prompts() -> Iterator[tuple[int, int, str, list[dict[str, Any]]]]:
    for number, colour in enumerate(COLOURS):
        for index, ask in enumerate(ASKS):
            yield (
                number,
                index,
                colour,
                [
                    {"role": "user", "content": "Are you a parrot?"},
                    {"role": "assistant", "content": "Yes."},
                    {"role": "user", "content": ask.format(colour)},
                ],
            )
