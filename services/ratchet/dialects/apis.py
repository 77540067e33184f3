"""The APIs that answer calls, by the name that turns have for them."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.dialects.forms import CHAT, TEXT, Form
from ratchet.dialects.messages import MESSAGES
from ratchet.dialects.responses.form import RESPONSES

APIS: Mapping[str, Form] = {form.name: form for form in (CHAT, TEXT, RESPONSES, MESSAGES)}
