"""Run the span exporter: `python -m ratchet.extras.span_exporter`."""

from ratchet.core.service.runtime import run
from ratchet.extras.span_exporter.app import NAME, build
from ratchet.extras.span_exporter.settings import Settings

if __name__ == "__main__":
    run(NAME, build, Settings)
