"""A secret beside its name in text: `name = value` in code, YAML, .env, logs, URLs, XML and JSON that is no JSON.

Only literals are secrets: `pwd = os.getcwd()`, `password: str` and `key=${KEY}` name a value that stands elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ratchet.core.rules.redaction.checks import has_digit, is_random, is_token
from ratchet.core.rules.redaction.names import Named, named, words

PLACEHOLDER = re.compile(r"\[REDACTED:[a-z_]+\]")

LONGEST_LINE = 512
"""Characters of a line that are read on either side of a value: a text may be one line of megabytes."""
_NAME = re.compile(r"""(?P<gap>[ \t]{0,4})(?P<close>\]?["'`]?\\{0,3})(?P<name>[\w.$-]{1,64})""")
"""What stands before a sign, read backwards."""
_NAME_AND_SIGN = re.compile(r"""["'#]{0,2}[ \t]{0,2}[:=]""" + _NAME.pattern)
_SIGN = re.compile(r"(?:=>|:=|==?(?!=)|:(?!:)|>)(?P<pad>[ \t]{0,4})")
_QUOTED = re.compile(
    r"""[brBR]?(?:\\{1,3}["'](?P<escaped>[^"'\\]+)|"(?P<double>(?:[^"\\]|\\.)+)|'(?P<single>(?:[^'\\\n]|\\.)+)"""
    r")"
)
_BARE = re.compile(r"""(?P<bare>[^\s"'`,;&<>)}\]\\]{1,1024})""")
_LINE = re.compile(r"""(?P<line>[^\r\n"'`]{1,4096})""")
_OPENING = re.compile(r"""\\{0,3}["'`]""")
_ELEMENT = re.compile(r"(?P<value>[^<>\n]{1,1024})</")
_BELOW = re.compile(r"[ \t]*[|>]?[-+]?[ \t]*\r?\n[ \t]*(?:- )?(?P<below>[^\s:\"'{}\[\]]{4,1024})[ \t]*(?=\r?\n|\Z)")
_NAMED = re.compile(
    r"""\\{0,3}["']?(?P<name>[\w.-]{2,64})\\{0,3}["']?\s{0,40},?\s{0,40}\\{0,3}["'-]{0,2}"""
    r"""(?:value|val)\\{0,3}["']?[ \t]{0,4}[:=][ \t]{0,4}"""
)
_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]{1,40})[ \t]{1,4}(?=[^\s-])")
_PROSE = re.compile(
    r"(?:password|passwd|passphrase|passcode|passwort|kennwort|contraseña|senha|mot de passe)"
    r"[ \t]+(?:is|was|ist|lautet|es|est|è|é|to)[ \t:]{1,3}[\"'`]?(?P<prose>[^\s\"'`]{4,256})",
    re.IGNORECASE,
)
NAMING = frozenset({"name", "key", "header", "field", "variable", "param", "parameter", "env", "label"})
"""Members that hold the name of the value in the member beside them."""
_SCHEME = re.compile(r"(?i:basic|bearer|digest|token|apikey|negotiate|aws4-hmac-sha256)[ \t]{1,4}")
_TYPES = words(
    "string str text none null nil true false undefined optional required any int integer number object "
    "bool boolean bytes hidden masked empty missing unknown invalid incorrect wrong yes no on off array "
    "list dict map float double char varchar byte uuid date not a the"
)
_ELSEWHERE = re.compile(
    r"\$|%[({\w]|\{|<[\w .:|-]*>?\Z|[*•.x-]{3,}\Z|…|env[.:(]|process\.env|os\.|import\.meta|vault:|secretref|arn:"
    r"|self\.|this\.|.*\.\.\.|.*\$[A-Z{]|args\.|options\.|config\.|\[REDACTED:|!(?:Ref|Sub|secret|vault)|\(",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*")
_URL_SCHEME = re.compile(r"[a-z][a-z+.-]{1,20}://", re.IGNORECASE)

Span = tuple[int, int, str]
"""Start, end, kind."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value may stand, and how it is attached to its name."""

    text: str
    named: Named
    name: str
    at: int
    sign: str
    spaced: bool
    line_start: bool

    def span(self, match: re.Match[str] | None, group: str) -> Span | None:
        """The span of a value that is a secret; None for one that is not."""
        if match is None or PLACEHOLDER.match(match[group]):
            return None
        return (match.start(group), match.end(group), self.named.kind)


def name_before(text: str, place: int) -> str:
    """The name before `: ` or `= ` that ends at `place`; empty where none does."""
    before = _NAME_AND_SIGN.match(_reversed(text, place))
    return before["name"][::-1] if before else ""


def _line_before(text: str, place: int) -> str:
    """What stands before a place on its line."""
    return text[max(0, place - LONGEST_LINE) : place].rpartition("\n")[2]


def _reversed(text: str, place: int) -> str:
    return text[max(0, place - 80) : place][::-1]


def beside_its_name(text: str, place: int) -> Span | None:
    """The value after a sign (`=`, `:`, `>`) at `place`, if the name before it says that it is a secret."""
    before = _NAME.match(_reversed(text, place))
    sign = _SIGN.match(text, place)
    if before is None or sign is None:
        return None
    name = before["name"][::-1]
    meaning = named(name)
    if meaning is None or name.startswith("$"):
        return _named_beside(text, sign.end()) if name.lower() in NAMING else None
    start = place - before.end()
    line_start = _line_before(text, start).strip(" \t-\"'") in {"", "export", "set"}
    where = _Place(text, meaning, name, sign.end(), text[place], bool(before["gap"] or sign["pad"]), line_start)
    if text[place] == ">":
        return _in_xml(where) if text[start - 1 : start] == "<" else None
    return _value(where) or _below(where) or (_named_beside(text, sign.end()) if name.lower() in NAMING else None)


def _named_beside(text: str, at: int) -> Span | None:
    """The value of `"name": "password", "value": X`, from after `name`."""
    beside = _NAMED.match(text, at)
    meaning = named(beside["name"]) if beside else None
    if beside is None or meaning is None:
        return None
    return _value(_Place(text, meaning, beside["name"], beside.end(), ":", spaced=True, line_start=True))


def after_an_option(text: str, place: int) -> Span | None:
    """The value of `--password X`."""
    option = _OPTION.match(text, place)
    meaning = named(option["name"]) if option else None
    if option is None or meaning is None:
        return None
    return _value(_Place(text, meaning, option["name"], option.end(), " ", spaced=True, line_start=False))


def in_prose(text: str, place: int) -> Span | None:
    """The word after `my password is`, where it is no word of prose. `place`: of a part of the name."""
    prose = next(filter(None, (_PROSE.match(text, max(0, place - before)) for before in (0, 2, 3, 4))), None)
    if prose is None:
        return None
    word = prose["prose"].rstrip(".,;!?)")
    unlike = has_digit(word) or re.search(r"[^\w'’-]", word)
    if len(word) < 4 or not unlike or _ELSEWHERE.match(word):
        return None
    return (prose.start("prose"), prose.start("prose") + len(word), "password")


def _value(where: _Place) -> Span | None:
    text, at = where.text, where.at
    if re.search(r"(?i)authorization|cookie", where.name):
        return _header(where)
    quoted = _QUOTED.match(text, at)
    if quoted is not None:
        group = quoted.lastgroup or "double"
        return where.span(quoted, group) if _accepts_quoted(where, quoted[group]) else None
    bare = _BARE.match(text, at)
    if bare is None or not _accepts_bare(where, bare["bare"], text[bare.end() : bare.end() + 1]):
        return None
    return where.span(bare, "bare")


def _header(where: _Place) -> Span | None:
    """The rest of a header's line or quotes, after the word for the scheme."""
    text, at = where.text, where.at
    opening = _OPENING.match(text, at)
    if opening is None and where.sign != ":":
        return where.span(_BARE.match(text, at), "bare") if _looks(where, at) else None
    at = opening.end() if opening else at
    scheme = _SCHEME.match(text, at)
    line = _LINE.match(text, scheme.end() if scheme else at)
    if line is None:
        return None
    value = line["line"].rstrip(" \t\\,;")
    literal = len(value) >= 4 and not _ELSEWHERE.match(value) and value.lower() not in _TYPES
    if not literal or not (scheme or opening or "=" in value or is_token(value.split()[0])):
        return None
    if not scheme and _IDENTIFIER.fullmatch(value) and not has_digit(value):
        return None
    if PLACEHOLDER.match(value):
        return None
    first = re.match(r"\S+", value) if scheme and opening is None else None
    return (line.start("line"), line.start("line") + len(first[0] if first else value), where.named.kind)


def _looks(where: _Place, at: int) -> bool:
    bare = _BARE.match(where.text, at)
    return (
        bare is not None
        and not _ELSEWHERE.match(bare["bare"])
        and is_token(bare["bare"])
        and "(" not in bare["bare"]
        and has_digit(bare["bare"])
    )


def _in_xml(where: _Place) -> Span | None:
    value = _ELEMENT.match(where.text, where.at)
    return where.span(value, "value") if value and _accepts_quoted(where, value["value"]) else None


def _below(where: _Place) -> Span | None:
    """A value on the line below `password:`, also the first of a list."""
    below = _BELOW.match(where.text, where.at) if where.sign == ":" and where.named.certain else None
    if below is None or not (has_digit(below["below"]) or re.search(r"[^\w.-]", below["below"])):
        return None
    return where.span(below, "below") if _accepts_bare(where, below["below"], "\n") else None


def accepts(meaning: Named, value: str) -> bool:
    """Whether a text under a name of this meaning is its secret: a whole value, as in JSON."""
    if PLACEHOLDER.search(value) or not any(map(str.isalnum, value)):
        return False
    if meaning.digits:
        return sum(map(str.isdigit, value)) >= meaning.digits and len(value) <= 64
    return meaning.certain or is_random(value)


def _accepts_quoted(where: _Place, value: str) -> bool:
    if _ELSEWHERE.match(value) or value.lower() in _TYPES or not accepts(where.named, value):
        return False
    if _URL_SCHEME.match(value) and where.named.kind != "password":
        return False
    words = value.split()
    prose = len(words) >= 3 and (value[:1].isupper() or value.endswith(".")) and not has_digit(value)
    if prose or len(words) > 7 or value.rstrip().endswith((":", "?")) or value[:1].isspace():
        return False
    if where.named.kind == "secret" and _IDENTIFIER.fullmatch(value) and not has_digit(value):
        return not (value.islower() or value.isupper()) or len(value) >= 24
    return value.lower() != where.name.lower()


def _accepts_bare(where: _Place, value: str, following: str) -> bool:
    value = value.rstrip(".:!?")
    if not value or _ELSEWHERE.match(value) or value.lower() in _TYPES or not accepts(where.named, value):
        return False
    if where.named.digits:
        return True
    if any(character in value for character in "([{") or following in {"(", "["}:
        return False
    if not where.named.certain or where.named.kind != "password":
        return is_token(value) and has_digit(value) and not _is_code(where, value, following)
    return len(value) >= 2 and not _is_code(where, value, following)


def _is_code(where: _Place, value: str, following: str) -> bool:
    """Whether a bare value is rather the name of another value, a type or a number of a program."""
    if value.replace(".", "", 1).isdigit():
        return len(value) < 4
    if not _IDENTIFIER.fullmatch(value):
        return False
    if "." in value or where.name.lower().endswith(value.lower()):
        return True
    if has_digit(value):
        return where.sign == "=" and following in {",", ")"} and "(" in _line_before(where.text, where.at)
    if where.sign == ":" or where.spaced:
        end = where.at + len(value)
        rest = where.text[end : end + LONGEST_LINE].partition("\n")[0].strip()
        is_whole_line = where.line_start and not rest and where.sign in {":", "="} and value == value.lower()
        return not is_whole_line or where.sign == "="
    return following in {",", ")"} or (value != value.lower() and not value.isupper() and value[:1].isupper())
