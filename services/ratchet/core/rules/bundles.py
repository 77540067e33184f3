"""What a bundle may say, and its template of instructions: read once, expanded for each call.

A template is expanded in one pass: `{{...}}` in what an agent sent, or in a variable, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.core.contract.bundle import APPEND, NO_BUNDLE, PREPEND, REPLACE, Bundle, BundleModel, Example, Instructions
from ratchet.core.contract.workflows import PlannerRef
from ratchet.core.errors import BadRequest, Rejected

MOST_BYTES = 256 * 1024
"""Of a bundle as JSON: it stands in a key-value bucket, whose values are below 1 MiB, and in each prompt."""
MOST_VARIABLE = 4096
"""Characters of a variable's value."""
BLANK_LINE = "\n\n"
"""Between texts that are joined."""
NO_UPSTREAM = "no_upstream"
"""Code of an error: the gateway's settings name no upstream that a policy asks, or none for its role."""
SENT = "instructions"
"""The placeholder for what the agent sent."""
VARIABLES, METADATA = "ratchet_variables", "metadata"
"""Members of a request that bring variables. The first one never leaves the gateway: some providers refuse metadata."""
_VARIABLES = "variables."
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MOST_SENT, MOST_PLACEHOLDERS = 2, 100
"""Of a template, the first of what the agent sent, which may be megabytes: each is written into every call."""


class MissingVariable(BadRequest):
    """A request brings no value for a variable of the instructions."""


@dataclass(frozen=True, slots=True)
class Template:
    """Instructions, taken apart."""

    texts: tuple[str, ...]
    """What stands before, between and after the placeholders: one more than those."""
    names: tuple[str, ...]
    """The placeholders: `instructions`, or the name of a variable behind `variables.`."""

    @property
    def variables(self) -> frozenset[str]:
        """The variables that stand in it."""
        return frozenset(name.removeprefix(_VARIABLES) for name in self.names if name != SENT)

    def expanded(self, sent: str, given: Mapping[str, object]) -> str:
        """The text for an agent's instructions and the metadata of its request. Raises `MissingVariable`."""
        parts = [self.texts[0]]
        for name, text in zip(self.names, self.texts[1:], strict=True):
            parts += (sent if name == SENT else _value(name.removeprefix(_VARIABLES), given), text)
        return "".join(parts)


def template_of(instructions: Instructions) -> Template:
    """Raises `Rejected` for a placeholder that nothing fills, and where text and declared variables differ."""
    pieces = _split(instructions.text)
    names = tuple(name.strip() for name in pieces[1::2])
    template = Template(tuple(pieces[::2]), names)
    if names.count(SENT) > MOST_SENT or len(names) > MOST_PLACEHOLDERS:
        most = f"at most {MOST_PLACEHOLDERS} placeholders, {MOST_SENT} of them {{{{{SENT}}}}}"
        raise Rejected(f"the instructions have {len(names)} placeholders: {most}")
    for name in names:
        if name != SENT and not name.startswith(_VARIABLES):
            raise Rejected(
                f"{{{{{name[:80]}}}}} in the instructions is neither {{{{{SENT}}}}} nor {{{{{_VARIABLES}NAME}}}}"
            )
    if misnamed := sorted(name for name in template.variables if not _VARIABLE.fullmatch(name)):
        raise Rejected(f"{misnamed[0][:80]!r} is no variable's name: letters, digits and _, at most 64")
    declared = frozenset(instructions.variables)
    if undeclared := sorted(template.variables - declared):
        raise Rejected(f"the instructions use the variable {undeclared[0]}, which `variables` does not declare")
    if unused := sorted(declared - template.variables):
        raise Rejected(f"`variables` declares {unused[0]}, which the instructions do not use")
    return template


def _split(text: str) -> list[str]:
    """What stands before, in and after each pair of double braces. Linear in the text, whatever braces it has."""
    pieces: list[str] = []
    begin = 0
    while (opened := text.find("{{", begin)) >= 0 and (closed := text.find("}}", opened + 2)) >= 0:
        pieces += (text[begin:opened], text[opened + 2 : closed])
        begin = closed + 2
    return [*pieces, text[begin:]]


def placed(mode: str, sent: str, text: str) -> str:
    """Instructions and those that the agent sent, as the mode puts them."""
    if mode == PREPEND:
        return BLANK_LINE.join(filter(None, (text, sent)))
    return BLANK_LINE.join(filter(None, (sent, text))) if mode == APPEND else text


def expanded(instructions: Instructions | None, sent: str, given: Mapping[str, object]) -> str:
    """The system prompt for an agent's own and the metadata of its request. Raises `MissingVariable`."""
    if instructions is None:
        return sent
    return placed(instructions.mode, sent, template_of(instructions).expanded(sent, given))


def variables_in(text: str) -> tuple[str, ...]:
    """The variables that a template uses, each once."""
    names = [name.strip() for name in _split(text)[1::2]]
    return tuple(dict.fromkeys(name.removeprefix(_VARIABLES) for name in names if name.startswith(_VARIABLES)))


def check_bundle(bundle: Bundle) -> None:
    """Raise `Rejected`, in a sentence, for a bundle that could answer no call."""
    if bundle == NO_BUNDLE:
        raise Rejected("the bundle changes nothing: give it instructions, tools, examples, sampling values or a model")
    if bundle.planner is not None:
        _check_planner(bundle, bundle.planner)
    size = len(msgspec.json.encode(bundle))
    if size > MOST_BYTES:
        raise Rejected(f"the bundle has {size:,} bytes; at most {MOST_BYTES:,} are read")
    if bundle.instructions is not None:
        template_of(bundle.instructions)
        if bundle.instructions.mode not in (REPLACE, PREPEND, APPEND):
            raise Rejected(
                f"instructions {REPLACE}, {PREPEND} or {APPEND}; {bundle.instructions.mode[:80]!r} is no mode"
            )
    _check_examples(bundle.examples)
    shape = bundle.response_format
    if shape is not None and not isinstance(shape.get("json_schema", {}), dict):
        raise Rejected("`json_schema` of the bundle's response_format is an object, with the schema in it")
    if any(not name.strip() for name in bundle.tools):
        raise Rejected("a tool of the bundle has no name")
    if bundle.model is not None:
        check_model(bundle.model)


def _check_examples(examples: Sequence[Example]) -> None:
    if any(example.role not in ("user", "assistant") for example in examples):
        raise Rejected("examples are messages of the user and of the assistant alone")
    if examples and examples[-1].role != "assistant":
        raise Rejected("the last example must be of the assistant: the conversation follows it")


def _check_planner(bundle: Bundle, planner: PlannerRef) -> None:
    if bundle != Bundle(planner=planner):
        raise Rejected("a bundle with a planner plans workflows and answers no calls: it has no other part")
    if not planner.uri.endswith(f"/blobs/{planner.sha256}"):
        raise Rejected("the planner's uri must be that of a blob: s3://BUCKET/blobs/ and its sha256")


def check_model(model: BundleModel) -> None:
    """Raise `Rejected` unless it names a model of an upstream or a policy, and not both."""
    if (model.upstream is None) == (model.digest is None):
        raise Rejected("a bundle's model names an `upstream`, or a policy by its `digest`, and not both")


def model_name(bundle: Bundle) -> str:
    """Who answers, in words: `openai/small`, `support@3-1a2b3c4d`; empty where the bundle does not say."""
    model = bundle.model
    return "" if model is None else f"{model.upstream}/{model.name}" if model.upstream else model.name


def variables_of(members: Mapping[str, object]) -> dict[str, object]:
    """The variables that a request brings in these of its members; those of `ratchet_variables` come first."""
    given = (members.get(name) for name in (METADATA, VARIABLES))
    return {name: value for member in given if isinstance(member, dict) for name, value in member.items()}  # pyright: ignore[reportUnknownVariableType] - JSON


def _value(name: str, given: Mapping[str, object]) -> str:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        message = f"neither `{VARIABLES}` nor `{METADATA}` has {name}, which the policy's instructions need"
        raise MissingVariable(message, param=f"{VARIABLES}.{name}")
    text = str(value)
    if len(text) > MOST_VARIABLE:
        message = f"the variable {name} has {len(text)} characters; at most {MOST_VARIABLE} are read"
        raise MissingVariable(message, param=f"{VARIABLES}.{name}")
    return text
