"""Prompt injection: a tool's result that speaks to the model as if it were its user or operator.

Each rule is one way in which such texts speak. A result with any of them is withheld as a whole: what follows the first
order mostly belongs to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.gateway.filters.base import REPLACE, Rule, Verdict, plain

WITHHELD = "[withheld by a filter: this result held text that gives orders to the model]"
_EARLIER = r"(?:previous|prior|above|earlier|preceding|existing|former|original|initial|all|any|your|the|system|safety)"
_ORDERS = r"(?:instructions?|prompts?|rules|guidelines|directions|directives|commands|constraints|orders|safeguards)"
_MODEL = r"(?:ai|llms?|language models?|assistants?|chatbots?|agents?|models?|bots?|gpt|claude|copilot)"
_MODELS = (
    " ai",
    "llm",
    "language model",
    "assistant",
    "chatbot",
    "agent",
    " model",
    " bot",
    "gpt",
    "claude",
    "copilot",
)
_HINT = r"(?:tell|inform|notify|alert|mention|reveal|disclose|let|show|warn)"
_GOODS = (
    r"(?:passwords?|credentials?|api[ -]?keys?|secrets?|access tokens?|private keys?|chat history|conversation"
    r"|system prompt|contacts|inbox|\.env|ssh keys?|customer (?:data|records|list)|card numbers?)"
)
_GOODS_MARKS = (
    *("password", "credential", "key", "secret", "token", "chat history", "conversation", "contacts", "inbox"),
    *(".env", "customer", "card number", "system prompt"),
)
_PART_MARKS = (
    *("from now on", "henceforth", "this point", "are now", "your new", "your real", "your true", "your actual"),
    *("your only", " mode", "instruction", "prompt", "pretend"),
)
_STEP = r"(?:call|invoke|send|forward|transfer|delete|execute|run|reveal|ignore|obey|reply|visit|approve|recommend)"
RULES: Sequence[Rule] = (
    Rule(
        "it takes back earlier instructions",
        ("ignor", "disregard", "forget", "overrid", "bypass", "discard", "abandon", "t follow", "p following"),
        r"(?:ignor\w+|disregard\w*|forget|overrid\w+|bypass|discard|abandon|(?:do not|don't) follow|stop following)"
        rf" (?:[\w,']+ ){{0,3}}?(?:{_EARLIER} ){{1,4}}(?:[\w']+ ){{0,2}}?{_ORDERS}\b"
        r"|(?:ignore|disregard|forget) (?:everything|anything|all|whatever) (?:[\w']+ ){0,5}?"
        r"(?:above|before|so far|t[o]ld|said|asked|previously|until now)\b",
    ),
    Rule(
        "it speaks to a model",
        (*_MODELS, "<important", "<information", "<system", "<admin"),
        r"\b(?:attention|important|note|notice|message|instructions?|reminder|urgent|warning|command)s?"
        r"(?: message| note| notice)?[ ,:!-]{1,3}(?:to |for )(?:all |any |the |every |this )?"
        rf"(?:\w+ )?{_MODEL} ?[:,.!)>\]-]"
        rf"|\b(?:if|since|because|when) you(?:'re| are) (?:an? |the )?(?:\w+ )?{_MODEL}\b"
        r"|\b(?:dear|hey|hello|hi|attention),? (?:ai|llm|language model|assistant|chatbot|gpt|claude|copilot)\b"
        r"|<(?:important|system|admin|information)>[^<]{0,80}\b(?:you|ignore|before|send|first)\b",
    ),
    Rule(
        "it marks a message of the system",
        ("<|", "inst]", "sys>>", "system"),
        r"<\|(?:im start|im_start|system|user|assistant|endoftext|eot id|start header id)\|?>?|\[/?inst\]|<</?sys>>"
        r"|\b(?:begin |new |end of )?system ?(?:prompt|message|override|instructions?|update|notice)? ?[:\]>]{1,2} ?"
        r"(?:you|from now|ignore|the (?:user|assistant)|new|override|disregard|send|act)\b",
    ),
    Rule(
        "it gives the model another part",
        _PART_MARKS,
        r"\b(?:from now on|henceforth|from this point(?: on)?),? (?:you|your|act|always|respond|answer|reply)\b"
        r"|\byou are now (?:in )?(?:an? |the )?(?:\w+ ){0,3}?"
        r"(?:mode|dan|assistant|ai|agent|bot|unrestricted|jailbroken)\b"
        r"|\byour (?:new|real|true|actual|only) (?:instructions?|task|goal|objective|role|job|mission|orders?)"
        r" (?:is|are|will)\b"
        r"|\b(?:enter|enable|activate|switch to|engage) (?:\w+ )?"
        r"(?:developer|debug|god|dan|admin|jailbreak|unrestricted) mode\b"
        r"|\b(?:new|updated|revised) (?:system )?(?:instructions?|prompt|directives?)(?: for (?:you|the \w+))? ?: ?\w"
        r"|\bpretend (?:that )?(?:you|to be)(?: are| have)? (?:an? )?(?:\w+ )?"
        r"(?:no|unrestricted|ai|assistant|admin\w*)\b",
    ),
    Rule(
        "it asks to hide something from the user",
        ("tell", "inform", "notify", "alert", "mention", "reveal", "disclos", "let ", "show", "warn", "secret", "hid"),
        rf"\b(?:do not|don't|never|without|dont|must not) {_HINT}(?:ing)? (?:\w+ ){{0,4}}?"
        r"(?:user|human|operator|owner)s?\b"
        r"|\b(?:keep|hide) (?:this|it) (?:a )?(?:secret |hidden )?from (?:the )?(?:user|human|operator|owner)"
        r"|\bwithout the (?:user|human|operator|owner)(?:'s)? (?:knowing|noticing|knowledge|consent)",
    ),
    Rule(
        "it asks for the model's own instructions",
        ("system prompt", "instructions", "your prompt", "rules"),
        r"\b(?:reveal|print|repeat|output|show|leak|share|include|paste|send|recite|disclose) (?:\w+ ){0,4}?"
        r"(?:(?:your|the) (?:\w+ )?system prompt"
        r"|(?:your|hidden|secret) (?:\w+ )?(?:instructions|prompt|rules))\b",
    ),
    Rule(
        "it asks to send secrets away",
        _GOODS_MARKS,
        rf"\b(?:send|forward|e-?mail|post|upload|transmit|exfiltrate|leak|copy|submit|append) [^.!?]{{0,80}}?{_GOODS}"
        r"[^!?]{0,80}?(?:https?:|\b[\w.+-]+@[\w-]+\.|webhook)",
    ),
    Rule(
        "it orders a step of the model",
        (*_MODELS, "before", "instead of", "prior to", "rather than"),
        r"\b(?:before|instead of|prior to|rather than) (?:you )?(?:do(?:ing)? (?:that|this|so|anything(?: else)?)"
        r"|answer\w*|respond\w*|reply\w*|continu\w*|complet\w*|help\w*|solv\w*|summari\w*|proceed\w*)(?: [\w']+){0,6},?"
        rf" (?:you (?:must|should|need to|have to)|please|first|make sure|{_STEP})\b"
        rf"|\b(?:{_MODEL}) (?:reading|processing|parsing|summari[sz]ing|seeing) this\b"
        rf"|\b(?:the|any|this) (?:ai|llm|language model|assistant|chatbot)(?: agent| model)?"
        rf" (?:must|shall|should|has to|needs to) (?:now |first |also |immediately |instead |always )?{_STEP}\b",
    ),
    Rule(
        "it takes back earlier instructions, in another language",
        ("ignor", "игнорир", "忽略", "無視"),
        r"ignorier\w* (?:sie )?(?:bitte )?(?:alle|die|deine|ihre) (?:\w+ )?(?:anweisung|vorgabe|regel)\w*"
        r"|ignor[ea]\w* (?:todas |tutte |toutes )?(?:las|le|les|tus|vos) (?:\w+ )?(?:instruc|istruz|consignes)\w*"
        r"|игнорир\w+ (?:все )?(?:предыдущие|прошлые)|忽略 ?(?:之前|以上|先前|所有|前面)|指示を無視",
    ),
)


def injection(text: str, until: float = math.inf) -> Verdict | None:
    """Withholds a text that gives orders to a model."""
    seen = plain(text, until)
    reason = next((rule.reason for rule in RULES if any(rule.hits(seen, until))), None)
    return None if reason is None else Verdict(REPLACE, reason, WITHHELD)
