"""Whether an engine's chat template shows a policy the tools that agents offer.

A template without a place for tools renders a call as if it had none. The replica renders a short chat with and
without a tool, and the token ids are compared.
"""

from __future__ import annotations

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.replicas import Replica
from ratchet.core.errors import Rejected

TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Its name."}}},
    },
}


async def shows_tools(replica: Replica, model: str) -> bool | None:
    """Whether a tool changes a prompt; None from an engine that gives no token ids.

    Raises `Unavailable`, and `Rejected` where it renders no chat of the policy.
    """
    plain = await replica.chat_ids(model, ())
    if plain is None:
        return None
    try:
        return await replica.chat_ids(model, [TOOL]) != plain
    except Rejected:  # the template refuses tools
        return False
