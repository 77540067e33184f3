"""What attributes are made of texts that anybody may have written: names, signatures of errors, terms, a language."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from ratchet.core.contract.learning import LONGEST_STATEMENT
from ratchet.core.rules.redaction import redacted
from ratchet.core.rules.texts import same_form

LONGEST_NAME = 80
READ_NAME = 400
"""Characters of a text of which a name is made: a secret that the name's end would cut is still whole here."""
READ_TEXT = 2000
MOST_TERMS = 64
"""Terms of one text."""

_FUNCTION_WORDS = {
    "en": "the a an and or of to in is are was were be been it its i you he she we they my your his her our their this"
    " that these those for with on at by from as not no do does did have has had can could would should will me him"
    " them what which who when where how why if but so there please am up out about into than then just ll ve re don",
    "de": "der die das und oder ein eine einen einem einer ist sind war waren ich du er sie es wir ihr mein meine dein"
    " nicht kein keine zu in im am auf mit von für bei als auch wie was wer wo wann bitte habe hat haben kann können"
    " wird werden den dem des sich nach noch nur aber",
    "fr": "le la les un une des et ou de du est sont je tu il elle nous vous ils mon ma mes ton votre notre ne pas que"
    " qui quoi dans sur avec pour par en au aux ce cette ces mais plus avoir ai suis être",
    "es": "el la los las un una unos y o de del es son yo tú él ella nosotros mi mis su sus no que quien en con por"
    " para al este esta estos pero más como cuando donde he ha tengo puede favor se lo",
    "it": "il lo la i gli le un uno una e o di del della è sono io tu lui lei noi mio mia non che chi in con per da al"
    " alla questo questa ma più come quando dove ho ha si",
    "pt": "o a os as um uma e ou de do da dos das é são eu tu ele ela nós meu minha não que quem em no na com por para"
    " ao este esta mas mais como quando onde tenho se",
    "nl": "de het een en of van is zijn was ik je jij hij zij we wij mijn niet geen te in op met voor bij als ook hoe"
    " wat wie waar wanneer heb heeft kan dat dit die maar nog",
}
"""Words that tell a language and nothing else."""
_LANGUAGES_OF: dict[str, tuple[str, ...]] = {}
for _language, _listed in _FUNCTION_WORDS.items():
    for _word in _listed.split():
        _LANGUAGES_OF[_word] = (*_LANGUAGES_OF.get(_word, ()), _language)
_SCRIPTS = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "CJK": "zh",
    "CYRILLIC": "cyrillic",
    "ARABIC": "arabic",
    "HEBREW": "he",
    "GREEK": "el",
    "DEVANAGARI": "devanagari",
    "THAI": "th",
}
_WORD = re.compile(r"(?<!\w)[^\W\d_]+(?!\w)")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")
_IDENTIFIER = re.compile(r"\b(?=[\w-]*\d)[\w-]*\b|\d+")
_QUOTED = re.compile(r"""(?<!\w)'[^']{1,200}'(?!\w)|"[^"]{1,200}\"""")
_PILED = r"[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]"
_PILE = re.compile(f"(?<={_PILED}{_PILED}){_PILED}+")
_MARKUP = str.maketrans({"<": "‹", ">": "›", "`": "'", "|": "¦"})


def one_line(text: str, longest: int) -> str:
    """A text without control and format characters (bidirectional ones among them), half surrogates, markup and piles
    of marks, on one line; a longer one ends with `…`."""
    read = text[: 4 * longest]
    plain = read if read.isascii() and read.isprintable() else _PILE.sub("", "".join(map(_shown, read)))
    line = " ".join(plain.translate(_MARKUP).replace("](", "] (").replace("://", ":").split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def _shown(letter: str) -> str:
    """Itself, or a space in the place of one that cannot be seen."""
    return " " if unicodedata.category(letter)[0] in "CZ" else letter


@lru_cache(maxsize=32_768)
def name_of(text: str) -> str:
    """The name of a value, for people: on one line, without secrets, at most `LONGEST_NAME` characters; empty where
    nothing of it can be shown."""
    return one_line(redacted(one_line(text[:READ_NAME], READ_NAME)), LONGEST_NAME)


def sentence_of(text: str) -> str:
    """Words of anybody as a sentence for people: redacted, on one line, at most `LONGEST_STATEMENT` characters."""
    return one_line(redacted(one_line(text, 4 * LONGEST_STATEMENT)), LONGEST_STATEMENT)


@lru_cache(maxsize=32_768)
def signature_of(tool: str, error: str) -> str:
    """What errors of a tool have in common: without quoted parts, and without words that hold digits."""
    line = redacted(one_line(error[:READ_NAME], READ_NAME))
    masked = _IDENTIFIER.sub("#", _QUOTED.sub("'…'", line))
    return one_line(f"{name_of(tool)}: {masked}", LONGEST_NAME)


def terms_of(text: str) -> list[str]:
    """Its distinct words, but for those that only a language needs; of scripts without spaces, pairs of letters."""
    kept = (word for word in _words(text) if len(word) > 1 and word not in _LANGUAGES_OF)
    return list(dict.fromkeys(kept))[:MOST_TERMS]


def language_of(text: str) -> str | None:
    """A guess: by script, and of Latin ones by function words; None where they tell nothing."""
    sample = [letter for letter in text[:READ_NAME] if letter.isalpha()]
    scripts = [_script(letter) for letter in sample if not letter.isascii()]
    foreign = [script for script in scripts if script]
    if len(foreign) * 3 > len(sample):
        return "ja" if "ja" in foreign else max(sorted(set(foreign)), key=foreign.count)
    named = [language for word in _WORD.findall(text[:READ_NAME].lower()) for language in _LANGUAGES_OF.get(word, ())]
    return max(_FUNCTION_WORDS, key=named.count) if named else None


def _words(text: str) -> Iterator[str]:
    for word in _WORD.findall(same_form(text[:READ_TEXT])):
        if _UNSPACED.search(word):
            yield from (first + second for first, second in pairwise(word[:READ_TEXT]))
        else:
            yield word[:LONGEST_NAME]


@lru_cache(maxsize=4096)
def _script(letter: str) -> str | None:
    return _SCRIPTS.get(unicodedata.name(letter, "").partition(" ")[0])
