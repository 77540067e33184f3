"""Presidio as a detector: its pattern recognisers, without a model of language.

Presidio knows forms of many countries (passports, driving licences, tax numbers, bank accounts, crypto wallets, IP
addresses) that the rules leave alone, at about a hundred times their cost, and takes more for secret that is none. It
loads no model: names of people and places need one, which a detector of your own may bring.

Switched on by `RATCHET_REDACTION_DETECTORS=presidio`; needs the extra `presidio`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from ratchet.core.errors import ConfigError
from ratchet.core.rules.redaction.finders import Span

LEAST_SCORE = 0.4
"""Presidio's own marks for a form without a check or a word beside it lie below."""
LEFT_OUT = ("SpacyRecognizer", "EmailRecognizer", "UrlRecognizer")
"""One needs a model, and two fetch a list of domains from the network."""
IGNORED = frozenset({"DATE_TIME", "PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE"})
"""What is no secret, and what the rules know better."""


def detect(text: str) -> Sequence[Span]:
    """The spans of what the recognisers notice. Raises `ConfigError` where Presidio is not installed."""
    noticed = [(hit.start, hit.end, hit.entity_type.lower()) for hit in _analyzer().analyze(text, language="en")]
    return [span for span in noticed if span[2].upper() not in IGNORED]


@cache
def _analyzer() -> Any:  # an optional package, which is typed in parts
    try:
        presidio: Any = import_module("presidio_analyzer")
        engines: Any = import_module("presidio_analyzer.nlp_engine")
    except ImportError as error:
        raise ConfigError("the detector presidio needs a package: pip install 'ratchet-rl[presidio]'") from error
    engine = engines.NoOpNlpEngine(models=[{"lang_code": "en", "model_name": "none"}])
    engine.load()
    registry = presidio.RecognizerRegistry()
    registry.load_predefined_recognizers(languages=["en"])
    for name in LEFT_OUT:
        registry.remove_recognizer(name)
    return presidio.AnalyzerEngine(
        nlp_engine=engine, registry=registry, supported_languages=["en"], default_score_threshold=LEAST_SCORE
    )
