"""The search of one text: one pass over all marks, then the rules of a kind only where its marks stand.

What a text spells otherwise is read once: percent signs, entities, escapes, full-width characters and those without
width are decoded in the words that hold them, and a run of base64 that decodes to text is searched as that text.
"""

from __future__ import annotations

import base64
import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from ratchet.core.rules.redaction import finders
from ratchet.core.rules.redaction.finders import Find, Span
from ratchet.core.rules.redaction.kinds import KINDS, LETTERED, NUMERIC, Kind
from ratchet.core.rules.redaction.names import names_an_id
from ratchet.core.rules.redaction.values import name_before

_ENDS = "-_=:>@J"
"""Characters that are rare in prose: most marks end with one, and are looked for where it stands."""
_BY_END: dict[str, list[tuple[str, Find]]] = {end: [] for end in _ENDS}
_OTHERS: dict[str, list[Find]] = {}
"""Marks that end otherwise."""
for _kind in KINDS:
    for _mark in _kind.marks:
        if _mark[-1] in _ENDS:
            _BY_END[_mark[-1]].append((_mark, _kind.find))
        else:
            _OTHERS.setdefault(_mark, []).append(_kind.find)
_OTHER_MARKS = [*_OTHERS.items()]
_TAIL = "|".join(
    f"(?<={re.escape(end)})(?:{'|'.join(f'(?<={re.escape(mark)})' for mark in sorted({mark for mark, _ in marks}))})"
    for end, marks in _BY_END.items()
)
"""The last character of a mark stands there."""
_CAPITAL = (
    r"(?<=[A-Z])(?:(?=[A-Z]{1,5} ?\d|[A-Z][A-Z2-7]{56}|[\w-]{23,25}\.[\w-]{6}\.)|(?<=[XYZ])(?=-?\d{7})"
    r"|(?<=[AS])(?=[CK][a-z0-9]{32})|(?<=A)(?=KIA|SIA|BIA|CCA|3T|KC|Iza|TATT3x)|(?<=S)(?=G\.)"
    r"|(?=[A-Za-z0-9+/_-]{12}))"
)
"""A kind may begin there, with capital letters; or they stand in a run of base64."""
_NUMBER = (
    r"(?<=[0-9])(?<![0-9][0-9])(?<![0-9]\.[0-9])(?!(?<=[12])[09]\d\d[-/.]\d\d[-/.]\d\d(?!\d))"
    r"(?:[ ().\-/\u00a0]{0,2}[0-9]){7,}"
)
"""Stands in every number of a kind; in few dates, ids and figures."""
_PLACES = re.compile(f"[A-Z0-9{re.escape(_ENDS)}](?:{_TAIL}|{_CAPITAL}|{_NUMBER})")
_PLACES_IN_JSON = re.compile(f'[A-Z0-9{re.escape(_ENDS)}](?<!":)(?:{_TAIL}|{_CAPITAL}|{_NUMBER})')
"""Everything that is looked for, in one pass. It begins with a set, which is searched three times as fast as others."""
_BESIDE = frozenset("+(-. :#")
"""What stands before a phone number, or after its first three digits."""
LONG = 13
"""Digits of a group that no point stands before, unless it is a fraction."""
_GROUP = re.compile(r"[0-9]+")
_SHAPED = [kind for kind in NUMERIC if kind.pattern]
_SHAPES = re.compile("|".join(f"(?P<k{number}>{kind.pattern})" for number, kind in enumerate(_SHAPED)))
_HEX = re.compile(r"[0-9a-fA-F-]*")
_SPELLED = re.compile(
    r"%[0-9A-Fa-f]{2}|&#\d{1,7};|&#[xX][0-9A-Fa-f]{1,6};|&(?:amp|lt|gt|quot|apos|commat|colon|equals|period|nbsp);"
    r"|\\u00[0-9A-Fa-f]{2}|\\x[0-9A-Fa-f]{2}|[\u00ad\u200b-\u200d\u2060\ufeff\uff10-\uff19\uff20-\uff3a\uff41-\uff5a]"
)
_WORD, _LINE = re.compile(r"\S{1,4096}"), re.compile(r".{1,4096}")
_WIDE = re.compile("[\uff10-\uff19\uff20-\uff3a\uff41-\uff5a]")
"""Full-width digits and letters, in words with blanks between them."""
_RUN = re.compile(r"[A-Za-z0-9+/_-]*")
_OF_RUNS, _REST = "eyJ", re.compile(r"[\w-]*")
"""The mark of web tokens, whose parts are whole runs: where none begins at the first mark of a run, none does."""
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{20,}={0,2}")
SHORT_RUN, LONGEST_RUN = 64, 65_536
"""Characters of a run before the place where it is noticed."""
SHORTEST_OTHER = 12
"""Characters of the longest text that holds none of the marks that end in a letter."""
_SPELLED_AT = re.compile("[%&\\\\\u00ad\u200b-\u200d\u2060\ufeff\uff10-\uff19\uff20-\uff3a\uff41-\uff5a]")

_PRINTABLE = frozenset({*range(32, 127), *range(128, 256), 9, 10, 13})

Detector = Callable[[str], Sequence[Span]]
"""From a text the spans of what is secret in it."""


def spans_in(text: str, detectors: Sequence[Detector] = (), *, names: bool = True) -> list[Span]:
    """What is secret in a text: spans in order, none within another. Of overlapping ones the first kind counts.

    `names`: else it is JSON without backslashes whose names tell of no secret.
    """
    hits = _plain_spans(text, _PLACES if names else _PLACES_IN_JSON, with_base64=True)
    if _may_spell(text) and _SPELLED.search(text):
        for part in (_LINE if _WIDE.search(text) else _WORD).finditer(text):
            if _SPELLED.search(part[0]):
                hits += _decoded_spans(text, part)
    for detector in detectors:
        hits += detector(text)
    return _joined(hits) if len(hits) > 1 else hits


def _may_spell(text: str) -> bool:
    """Whether a text has a character by which others are spelled: most have none, and plain ASCII is asked sooner."""
    if text.isascii():
        return "%" in text or "&" in text or "\\" in text
    return _SPELLED_AT.search(text) is not None


def _plain_spans(text: str, places: re.Pattern[str] = _PLACES, *, with_base64: bool = False) -> list[Span]:
    hits: list[Span] = []
    decoded = covered = barren = 0
    for match in places.finditer(text):
        place, first = match.start(), text[match.start()]
        if place < covered:
            continue
        for mark, find in _BY_END.get(first, ()):
            if text.startswith(mark, place + 1 - len(mark)) and not (mark == _OF_RUNS and place < barren):
                hit = find(text, place + 1 - len(mark))
                if hit is None and mark == _OF_RUNS and (run := _REST.match(text, place)):
                    barren = run.end()
                _append(hits, hit)
        if first.isdigit():
            hits += _numbers(text, match)
        elif first.isalpha():
            decoded = _at_a_capital(hits, text, place, decoded if with_base64 else len(text))
        if hits and hits[-1][2] == "private_key":  # it may reach to the end, and is read once
            covered = hits[-1][1]
    if len(text) > SHORTEST_OTHER:
        _other_marks(hits, text)
    return hits


def _other_marks(hits: list[Span], text: str) -> None:
    """Append what stands at the marks that end in a letter."""
    for mark, finds in _OTHER_MARKS:
        place = text.find(mark) if mark in text else -1
        while place >= 0:
            _first(hits, finds, text, place)
            place = text.find(mark, place + len(mark))


def _at_a_capital(hits: list[Span], text: str, place: int, decoded: int) -> int:
    """Append what stands at a capital letter; returns up to where runs of base64 have been read."""
    if not text[place - 1 : place].isalnum():
        _first(hits, _LETTERED_FINDS, text, place)
    if place < decoded:
        return decoded
    hit, decoded = _in_base64(text, place)
    _append(hits, hit)
    return decoded


def _append(hits: list[Span], hit: Span | None) -> None:
    if hit is not None:
        hits.append(hit)


def _first(hits: list[Span], finds: Sequence[Find], text: str, place: int) -> bool:
    """Append what the first of some finds has."""
    for find in finds:
        hit = find(text, place)
        if hit is not None:
            hits.append(hit)
            return True
    return False


_LETTERED_FINDS = [kind.find for kind in LETTERED]


def _kind_of(shape: re.Match[str]) -> Kind:
    return next(kind for number, kind in enumerate(_SHAPED) if shape.start(f"k{number}") >= 0)


def _numbers(text: str, candidate: re.Match[str]) -> list[Span]:
    start, end = candidate.span()
    hits: list[Span] = []
    for group in _GROUP.finditer(text, start, end):
        place = group.start()
        is_fraction = text[place - 1 : place] == "." and group.end() - place >= LONG
        if not is_fraction and (not hits or place >= hits[-1][1]):
            shape = _SHAPES.match(text, place)
            if shape is not None and (kind := _kind_of(shape)).accept(shape[0]):
                hits.append((*shape.span(), kind.kind))
            elif text[place] == "0" or text[place - 1 : place] in _BESIDE or text[place + 3 : place + 4] in _BESIDE:
                _append(hits, finders.phone(text, place))
    if hits and (names_an_id(name_before(text, start)) or _is_hex(text, start, end)):
        return []
    return hits


def _is_hex(text: str, start: int, end: int) -> bool:
    """Whether the digits are a part of a hexadecimal id or digest."""
    before = _HEX.match(text[max(0, start - 48) : start][::-1])
    after = _HEX.match(text, end)
    letters = (before[0] if before else "") + (after[0] if after else "")
    return len(letters) + end - start >= 24 and any(map(str.isalpha, letters))


def _decoded_spans(text: str, part: re.Match[str]) -> Iterator[Span]:
    """The spans of a word, or a line, that holds other spellings, at their places in the text."""
    decoded: list[str] = []
    places: list[int] = []
    place = part.start()
    for spelled in _SPELLED.finditer(text, *part.span()):
        decoded.append(text[place : spelled.start()])
        places += range(place, spelled.start())
        character = _character(spelled[0])
        decoded.append(character)
        places += [spelled.start()] * len(character)
        place = spelled.end()
    decoded.append(text[place : part.end()])
    places += [*range(place, part.end()), part.end()]
    for start, end, kind in _plain_spans("".join(decoded)):
        yield places[start], places[end], kind


def _character(spelled: str) -> str:
    """The character that is spelled; none for one without width, and for a byte of a longer character."""
    if spelled[0] == "&":
        return html.unescape(spelled)[:1]
    if spelled[0] in "%\\":
        code = int(spelled[-2:], 16)
        return chr(code) if code < 128 else "\ufffd"
    return unicodedata.normalize("NFKC", spelled) if spelled > "\uff00" and spelled != "\ufeff" else ""


def _in_base64(text: str, place: int) -> tuple[Span | None, int]:
    """The run of base64 around a place, if what it decodes to holds a secret; and where the run ends."""
    run = _BASE64.match(text, place - _run_before(text, place))
    if run is None:
        return None, place
    kind = _kind_in_base64(run[0])
    if kind is None and "/" in run[0]:  # a path may end with it
        kind = _kind_in_base64(max(run[0].split("/"), key=len))
    return ((*run.span(), kind) if kind else None), run.end()


def _kind_in_base64(run: str) -> str | None:
    """The kind of the first secret in what a run decodes to; None where that is no text, or holds none."""
    plain = run.rstrip("=").replace("-", "+").replace("_", "/")
    usable = plain[: len(plain) - (len(plain) % 4 == 1)]
    if not _PRINTABLE.issuperset(base64.b64decode(usable[: min(16, len(usable) // 4 * 4)])):  # most runs end here
        return None
    decoded = base64.b64decode(usable + "=" * (-len(usable) % 4))
    hits = _plain_spans(decoded.decode()) if _is_text(decoded) else []
    return hits[0][2] if hits else None


def _run_before(text: str, place: int) -> int:
    """Characters of the run of base64 that ends before a place: most are short, and no more of the text is copied."""
    length = 0
    for reach in (SHORT_RUN, LONGEST_RUN):
        before = _RUN.match(text[max(0, place - reach) : place][::-1])
        length = before.end() if before else 0
        if length < reach:
            break
    return length


def _is_text(decoded: bytes) -> bool:
    try:
        text = decoded.decode()
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\r\n\t" for character in text)


def _joined(hits: list[Span]) -> list[Span]:
    """Overlapping spans as one, of the kind that was noticed first: of its own form rather than by its name."""
    ranks = {hit: (hit[2] in _BY_NAME, number) for number, hit in reversed([*enumerate(hits)])}
    joined: list[tuple[Span, tuple[bool, int]]] = []
    for hit in sorted(ranks, key=lambda hit: (hit[0], -hit[1])):
        if joined and hit[0] < joined[-1][0][1]:
            (start, end, kind), held = joined[-1]
            joined[-1] = ((start, max(end, hit[1]), hit[2] if ranks[hit] < held else kind), min(ranks[hit], held))
        else:
            joined.append((hit, ranks[hit]))
    return [hit for hit, _ in joined]


_BY_NAME = frozenset({"secret", "password"})
