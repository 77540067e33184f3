"""How an address is shown to people: without the user and password that may stand in it. Pure."""

from __future__ import annotations

import re

_USER = re.compile(r"(?:^|(?<=//))[^/?#]*@")
"""All up to the last `@` of the host's part, with a scheme before it or without: a password may hold an `@` itself."""


def shown(url: str) -> str:
    """The url for logs and messages."""
    return _USER.sub("", url)
