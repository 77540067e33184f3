"""The APIs that answer calls, by the name that turns have for them."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.gateway.domain.anthropic_messages import MESSAGES
from ratchet.gateway.domain.forms import CHAT, TEXT, Form
from ratchet.gateway.domain.responses.form import RESPONSES

APIS: Mapping[str, Form] = {form.name: form for form in (CHAT, TEXT, RESPONSES, MESSAGES)}
