"""Sends the client's log lines to the agent's own `logging`, never to its standard output."""

from __future__ import annotations

import structlog

from ratchet.core.service.logs import without_content


def use_stdlib_logging() -> None:
    """Send structlog's lines to `logging`, unless the agent has set structlog up itself.

    By default structlog prints to standard output, which for some agents is a protocol channel.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_logger_name,
            without_content,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
