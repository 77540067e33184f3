"""What tells a secret or a person's number from others that look like it: check digits, issuers, chance in characters.

Sources: ISO/IEC 7812 (cards), ISO 13616 (IBAN), and the rules of the countries' offices, named at each check.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache

_ISSUERS = re.compile(
    r"4(?:\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"  # American Express, Diners
    r"|(?:6011\d\d|64[4-9]\d{3}|65\d{4})\d{10}|35(?:2[89]|[3-8]\d)\d{12}"  # Discover, JCB
    r"|62\d{14,17}"  # UnionPay
)


def digits_of(text: str) -> str:
    """Its digits alone."""
    return "".join(filter(str.isdigit, text))


def is_card(text: str) -> bool:
    """An issuer's prefix and length, and ISO/IEC 7812's check digit."""
    digits = digits_of(text)
    if not _ISSUERS.fullmatch(digits):
        return False
    weighted = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in weighted) % 10 == 0


_IBAN_LENGTHS = re.compile(
    r"NO.{13}|BE.{14}|(?:DK|FI|NL|FO|GL|SD).{16}|(?:MK|SI).{17}|(?:AT|BA|EE|KZ|LT|LU|XK|MN).{18}"
    r"|(?:CH|CR|HR|LI|LV).{19}|(?:BG|BH|DE|GB|GE|IE|ME|RS|VA).{20}|(?:AE|GI|IL|IQ|OM|SO|TL).{21}"
    r"|(?:AD|CZ|ES|MD|PK|RO|SA|SE|SK|TN|VG).{22}|(?:LY|PT|ST).{23}|(?:IS|TR).{24}"
    r"|(?:BI|DJ|FR|GR|IT|MC|MR|SM).{25}|(?:AL|AZ|BY|CY|DO|GT|HU|LB|NI|PL|SV).{26}|(?:BR|EG|PS|QA|UA).{27}"
    r"|(?:JO|KW|MU|YE).{28}|(?:MT|SC).{29}|(?:LC|RU).{30}"
)


def is_iban(text: str) -> bool:
    """The length of its country, and the remainder 1 (ISO 13616)."""
    compact = re.sub(r"[ -]", "", text).upper()
    if not _IBAN_LENGTHS.fullmatch(compact[:2] + compact[2:]):
        return False
    moved = compact[4:] + compact[:4]
    return moved.isalnum() and int("".join(str(int(character, 36)) for character in moved)) % 97 == 1


def is_ssn(text: str) -> bool:
    """United States (SSA, since 2011): no area 000, 666 or 9xx, no group 00, no serial 0000."""
    area, group, serial = re.split(r"\D", text)
    return area not in {"000", "666"} and area < "900" and group != "00" and serial != "0000"


def is_cpf(text: str) -> bool:
    """Brazil: two check digits, and not eleven times one digit."""
    digits = [*map(int, digits_of(text))]

    def check(length: int) -> int:
        return sum(digit * (length + 1 - place) for place, digit in enumerate(digits[:length])) * 10 % 11 % 10

    return len(set(digits)) > 1 and digits[9:] == [check(9), check(10)]


def is_ahv(text: str) -> bool:
    """Switzerland (AHVN13): the check digit of EAN-13."""
    digits = [*map(int, digits_of(text))]
    return sum(digit * (1 + 2 * (place % 2)) for place, digit in enumerate(digits)) % 10 == 0


def is_nir(text: str) -> bool:
    """France: the key is 97 less the remainder of the number; Corsica's departments count as 19 and 18."""
    compact = re.sub(r"\W", "", text).upper().replace("2A", "19", 1).replace("2B", "18", 1)
    return compact.isdigit() and len(compact) == 15 and 97 - int(compact[:13]) % 97 == int(compact[13:])


def is_dni(text: str) -> bool:
    """Spain, DNI and NIE: the letter follows from the remainder by 23."""
    compact = text.replace("-", "").upper()
    number = compact[:-1].translate(str.maketrans("XYZ", "012"))
    return number.isdigit() and compact[-1] == "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23]


_D5 = tuple(
    tuple((a + b) % 5 + 5 * ((a < 5) != (b < 5)) if a < 5 else (a - b) % 5 + 5 * (b < 5) for b in range(10))
    for a in range(10)
)
"""The dihedral group of order ten."""
_TURN = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)


def is_aadhaar(text: str) -> bool:
    """India (UIDAI): twelve digits, the first above 1, with Verhoeff's check digit."""
    digits = digits_of(text)
    if len(digits) != 12 or digits[0] in "01":
        return False
    check = 0
    for place, digit in enumerate(map(int, reversed(digits))):
        for _ in range(place % 8):
            digit = _TURN[digit]  # noqa: PLW2901 - turned once for each place
        check = _D5[check][digit]
    return check == 0


REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "CH", "AT", "BE", "BR", "IN", "AU", "JP")
"""Countries whose numbers are recognised as people write them at home."""


@lru_cache(4096)
def is_phone(text: str) -> bool:
    """A number that can be called: one with `+` from anywhere, else one that is valid in one of `REGIONS`."""
    import phonenumbers  # noqa: PLC0415 - 60 ms, and most texts hold no number

    for region in (None,) if text.lstrip("( ").startswith("+") else REGIONS:
        try:
            number = phonenumbers.parse(text, region)
        except phonenumbers.NumberParseException:
            continue
        if phonenumbers.is_possible_number(number) if region is None else phonenumbers.is_valid_number(number):
            return True
    return False


_DIGIT = re.compile(r"\d")


def has_digit(text: str) -> bool:
    """Whether a digit is in it."""
    return _DIGIT.search(text) is not None


def is_token(text: str) -> bool:
    """Prose that follows a word such as `bearer` has neither digits nor length."""
    return len(text) >= 8 and (has_digit(text) or len(text) >= 24)


def entropy(text: str) -> float:
    """Shannon's, of its characters, in bits."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


TELLING = 256
_UUID = re.compile(r"[0-9A-Fa-f]{8}-?(?:[0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}")
_WORDS = re.compile(r"[A-Za-z]?[a-z]*|[A-Z]*|\d+")


def is_random(text: str) -> bool:
    """Whether it looks like chance, as keys and tokens do: long, mixed, no UUID, path, words or numbers in a row. Of a
    long text its beginning says enough."""
    if not 12 <= len(text) <= 4096:
        return False
    text = text[:TELLING]
    if not has_digit(text) or not any(map(str.isalpha, text)) or " " in text:
        return False
    if _UUID.fullmatch(text) or text.startswith(("/", "./", "http")) or not text.isascii():
        return False
    parts = re.split(r"[-_.:/+=|,@]", text)
    words = sum(len(part) for part in parts if _WORDS.fullmatch(part))
    return words < len(text) / 2 and entropy(text) >= 3.0
