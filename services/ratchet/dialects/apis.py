"""The APIs that answer calls, by the name that turns have for them."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.dialects.api_dialect import CHAT, TEXT, ApiDialect
from ratchet.dialects.messages.dialect import MESSAGES
from ratchet.dialects.responses.dialect import RESPONSES

APIS: Mapping[str, ApiDialect] = {dialect.name: dialect for dialect in (CHAT, TEXT, RESPONSES, MESSAGES)}
