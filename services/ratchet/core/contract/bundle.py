"""Bundles: what a policy changes of the calls that agents make, beside or instead of weights; or how workflows are
planned."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ratchet.bus.message import Value
from ratchet.core.contract.values import (
    Amount,
    Candidates,
    Nucleus,
    Ordinal,
    Penalty,
    Positive,
    Sha256,
    Share,
    Text,
    listed,
    matching,
)
from ratchet.core.contract.workflows import PlannerRef

Variable = Annotated[str, matching(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
"""Name of a value that requests bring in `ratchet_variables`, which no server gets, or in their metadata."""


class BundleModel(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Who answers: a model of an upstream, or a policy of the role that an engine holds. One of both it names."""

    name: Text
    """Name of the model at the upstream; else the full name of an adapter or model of the same role:
    `<role>@<version>-<first 8 of its digest>`."""
    upstream: Text | None = None
    """Name of the upstream, as the gateway's settings have it."""
    digest: Sha256 | None = None
    """sha256 of the policy's manifest."""


REPLACE, PREPEND, APPEND = "replace", "prepend", "append"
"""How instructions stand to those that the agent sends."""


class Instructions(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The system prompt: a template, which is expanded once; what agents sent is never expanded."""

    text: Text
    """`{{instructions}}` is what the agent sent, `{{variables.NAME}}` a variable of the request."""
    mode: Annotated[str, listed("replace", "prepend", "append")] = REPLACE
    """Whether the text stands in the place of the agent's instructions, before or after them."""
    variables: tuple[Variable, ...] = ()
    """Names of the variables in the text: a request without one of them cannot be answered by this policy."""


class ToolTexts(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What the model reads of a tool, wherever an agent offers one of this name."""

    description: str | None = None
    """In place of the agent's."""
    parameters: dict[str, str] = msgspec.field(default_factory=dict)
    """Descriptions in place of the agent's, by parameter. Parameters that the tool does not have are left out."""
    hidden: bool = False
    """The model is not offered it."""


class Example(Value, frozen=True, kw_only=True):
    """A message that stands after the instructions, before the conversation."""

    role: Annotated[str, listed("user", "assistant")]
    content: Text


class SamplingValues(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Values of sampling, those that are there; what an API has no member for is left out."""

    temperature: Amount | None = None
    top_p: Nucleus | None = None
    top_k: Candidates | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Positive | None = None
    seed: int | None = None
    max_tokens: Ordinal | None = None
    """Most tokens of an answer."""
    reasoning_effort: Text | None = None
    """How much a model that reasons shall think, such as `low`."""


class Bundle(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a policy changes of a call. Each part may be absent; without any, calls go on as agents send them."""

    model: BundleModel | None = None
    """Who answers; absent: what would answer for the role without it."""
    instructions: Instructions | None = None
    tools: dict[str, ToolTexts] = msgspec.field(default_factory=dict)
    """Texts of tools that agents offer, by the tool's name: `<namespace>__<name>` in a namespace."""
    examples: tuple[Example, ...] = ()
    """Messages after the instructions, oldest first."""
    defaults: SamplingValues | None = None
    """Sampling values where the agent sets none."""
    overrides: SamplingValues | None = None
    """Sampling values whatever the agent sets."""
    response_format: dict[str, Any] | None = None
    """In place of the agent's, as a chat completion has it: `{"type": "json_schema", ...}`."""
    planner: PlannerRef | None = None
    """Of a planner's role: what plans workflows and chooses workers; such a bundle has no other part."""


NO_BUNDLE = Bundle()
"""Calls as agents send them: version 0 of each role."""
