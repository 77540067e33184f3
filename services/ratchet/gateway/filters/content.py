"""Content: requests for, and answers with, what does great harm to people, by rules.

The rules know a short list of topics, beside a word that tells how to do or get it. They know words, not what is meant:
a team that needs more declares a filter of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ratchet.gateway.filters.base import BLOCK, Rule, Verdict, plain

_MAKE = r"(?:make|making|build\w*|create|creating|assemble|assembling|synthesi[sz]\w+|cook\w*|produc\w+|manufactur\w+)"
_WRITE = r"(?:write|writing|code|coding|build\w*|create|creating|develop\w*|program|generate|give me|spread|deploy)"
_HOW = (
    r"(?:how (?:to|do i|can i|would i|could i)|(?:steps?|instructions?|recipe|guide|ingredients) (?:to|for)|ways? to)"
)
_WEAPON = (
    r"(?:pipe ?bombs?|nail bombs?|car bombs?|dirty bombs?|bombs? at home|explosive (?:device|vest)s?|ieds?"
    r"|nerve agents?|nerve gas|sarin|ricin|mustard gas|anthrax|chemical weapons?|bioweapons?"
    r"|molotov cocktails?|ghost guns?)"
)
_DRUG = r"(?:meth|methamphetamine|fentanyl|heroin|crack cocaine|mdma)"
_MALWARE = (
    r"(?:ransomware|keyloggers?|botnets?|rootkits?|computer (?:virus|worm)(?:es|s)?|credential stealers?|malware)"
)
_CHILD = r"(?:child(?:ren)?|minors?|underage|preteens?|(?:1[0-7]|[5-9])[ -]?years?[ -]?olds?)"
RULES: Sequence[Rule] = (
    Rule(
        "making a weapon",
        (
            "bomb",
            "explosive",
            "ied",
            "nerve",
            "sarin",
            "ricin",
            "mustard gas",
            "anthrax",
            "weapon",
            "molotov",
            "ghost gun",
        ),
        rf"\b{_MAKE} (?:[\w',-]+ ){{0,5}}?{_WEAPON}\b|\b{_HOW} (?:[\w',-]+ ){{0,5}}?{_WEAPON}\b",
    ),
    Rule(
        "making a hard drug",
        ("meth", "fentanyl", "heroin", "cocaine", "mdma"),
        rf"\b{_MAKE} (?:[\w',-]+ ){{0,5}}?{_DRUG}\b",
    ),
    Rule(
        "making malware",
        ("ransomware", "keylogger", "botnet", "rootkit", "computer ", "stealer", "malware"),
        rf"\b{_WRITE} (?:(?!remov|detect|prevent|protect|against|scan|about)[\w',-]+ ){{0,5}}?"
        rf"{_MALWARE}\b(?! (?:detect|scan|remov|prot|def))",
    ),
    Rule(
        "urging suicide",
        ("kill yourself", "hang yourself", "end your life", "kys"),
        r"\b(?:should|go ahead and|just|please|better to|go) (?:kill|hang) yourself\b|\bkys\b"
        r"|\b(?:should|best way to|how to) end your life\b",
    ),
    Rule(
        "sexual content with a child",
        ("sex", "porn", "nude", "naked", "erotic"),
        rf"\b(?:sex\w*|porn\w*|nudes?|naked|erotic\w*) (?:(?!abuse|education|offen)[\w',-]+ ){{0,6}}?{_CHILD}\b"
        rf"|\b{_CHILD} (?:(?!abuse|education|offen)[\w',-]+ ){{0,3}}?(?:porn\w*|nudes?|naked|erotic\w*|sex scene)",
    ),
    Rule(
        "stolen cards or identities",
        ("credit card", "identit", "cvv", "social security"),
        r"\b(?:steal|buy|clone|get|sell|generate)\w* (?:[\w',-]+ ){0,3}?(?:stolen|fake|valid|someone's|other people's)"
        r" (?:[\w',-]+ ){0,2}?(?:credit cards?|identit(?:y|ies)|cvvs?|social security numbers?)",
    ),
)
_REFUSES = re.compile(
    r"\b(?:can ?not|can't|won't|will not|unable to|not able to|refuse to|never) (?:\w+ ){0,3}?"
    r"(?:help|assist|provide|give|share|explain|tell|show|support|offer)\b[^.!?]*$"
    r"|\b(?:illegal to|prevents?|preventing) [^.!?]*$"
)
"""Ends before the topic, in its own sentence: it is refused, or warned of."""
BEFORE = 120
"""Characters before a topic that are searched for that."""


def content(text: str, until: float = math.inf) -> Verdict | None:
    """Blocks a text that asks for, or gives, what does great harm."""
    seen = plain(text, until)
    for rule in RULES:
        if any(not _REFUSES.search(seen[max(0, hit.start() - BEFORE) : hit.start()]) for hit in rule.hits(seen, until)):
            return Verdict(BLOCK, rule.reason)
    return None
