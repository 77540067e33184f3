"""Types that many contracts share. Bounds and patterns stand in every schema; reading a value checks bounds alone."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta


def matching(pattern: str) -> Meta:
    """For a text that has a form. Schemas assert it: the bus has checked a message by then, and reads it once more."""
    return Meta(extra_json_schema={"pattern": pattern})


Uuid = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Uri = Annotated[str, Meta(extra_json_schema={"format": "uri"})]
Sha256 = Annotated[str, matching(r"^[0-9a-f]{64}$")]
Sha256OrNone = Annotated[str, matching(r"^([0-9a-f]{64})?$")]
"""Empty where there is nothing to have a digest."""
ROLE_FORM = r"^[a-z0-9_-]{1,64}$"
Role = Annotated[str, matching(ROLE_FORM)]
Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Ordinal = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Amount = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Percentage = Annotated[float, Meta(ge=0, le=100)]
Nucleus = Annotated[float, Meta(gt=0, le=1)]
"""`top_p`; 1 is off."""
Candidates = Annotated[int, Meta(ge=-1)]
"""`top_k`; 0 or -1 is off."""
Penalty = Annotated[float, Meta(le=2, ge=-2)]
"""OpenAI's presence or frequency penalty; 0 is off."""
UserRef = Annotated[str, matching(r"^[A-Za-z0-9_.:+/=-]{1,128}$")]
"""Keyed hash of an end user."""
KeyId = Annotated[str, matching(r"^[A-Za-z0-9_.-]{1,64}$")]
"""Names an API key, and is not the key."""
TraceId = Annotated[str, matching(r"^[0-9a-f]{32}$")]
SpanId = Annotated[str, matching(r"^[0-9a-f]{16}$")]

NULLABLE = Meta(extra_json_schema={"nullable": True})
"""Of a member that may be `null`, beside being absent."""
OPAQUE = Meta(extra_json_schema={"opaque": True})
"""Of a member whose shape is that of the running version: others see an object."""


def listed(*values: str) -> Meta:
    """For a text whose values the schema lists. A reader takes others as well: a newer writer may have more."""
    return Meta(extra_json_schema={"enum": list(values)})


DOMAINS = ("coding", "research", "data_analysis", "general", "debugging", "writing")
"""Of tasks: those that the schemas name. A role may have words of its own."""
PROFILES = ("researcher", "developer", "hacker", "rl-trainer")
"""Of subordinate agents, likewise."""
