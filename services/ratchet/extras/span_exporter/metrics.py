"""Metrics of the span exporter."""

from prometheus_client import Counter

SPANS = Counter("ratchet_exported_spans_total", "Spans, by what became of them: sent or refused.", ["outcome"])
