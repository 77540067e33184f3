"""What calls of models use, and how much they may: calls, tokens and US dollars."""

from __future__ import annotations

import math

import msgspec

from ratchet.core.contract.training import CallBudget, TokenPrices

MILLION = 1_000_000


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """Of calls, tokens and US dollars."""

    calls: float = 0.0
    tokens: float = 0.0
    usd: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(calls=self.calls + other.calls, tokens=self.tokens + other.tokens, usd=self.usd + other.usd)

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(calls=self.calls - other.calls, tokens=self.tokens - other.tokens, usd=self.usd - other.usd)

    def within(self, limit: Amounts) -> bool:
        """Whether no part exceeds the limit's."""
        return self.calls <= limit.calls and self.tokens <= limit.tokens and self.usd <= limit.usd


NOTHING = Amounts()
ONE_CALL = Amounts(calls=1)


class BudgetSpent(Exception):
    """The next call might exceed the budget."""


def limit_of(budget: CallBudget) -> Amounts:
    """Infinite where the budget names none."""
    return Amounts(calls=budget.calls, tokens=budget.tokens or math.inf, usd=budget.usd or math.inf)


def tokens_of(prompt: int, completion: int, prices: TokenPrices | None) -> Amounts:
    """Of the tokens of a prompt and an answer, without the call itself."""
    usd = (prompt * prices.prompt + completion * prices.completion) / MILLION if prices else 0.0
    return Amounts(tokens=prompt + completion, usd=usd)
