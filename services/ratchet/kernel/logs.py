"""Structured logs: one JSON object per line on standard error."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(service: str, level: str) -> None:
    """Set up structlog for this process; `service` is a member of every line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format='{"service":"' + service + '","log":"%(name)s"} %(message)s'
    )
