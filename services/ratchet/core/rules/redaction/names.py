"""What a name says of its value: `DB_PASSWORD_OLD`, `x-api-key` and `githubToken` name secrets, `max_tokens` none.

A name is read by its parts, in whatever way it is written. The last part decides, after parts that say nothing of the
kind (`old`, `value`, `2`): `password_policy` and `key_id` are no secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

LONGEST_NAME = 80
"""Characters of a name that are read, its last ones."""

_PARTS = re.compile(r"[^\W\d_]+|\d+")
_HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Named:
    """What a name says of its value."""

    kind: str
    certain: bool = True
    """Any value of it is secret; else one that looks like chance, as keys and tokens do."""
    digits: int = 0
    """Digits that its value has at least."""


PASSWORD, SECRET, LIKELY = Named("password"), Named("secret"), Named("secret", certain=False)

_IDLE = words(
    "value val text plain plaintext string str old new current confirm confirmed confirmation repeat "
    "again hash hashed encrypted enc b64 base64 hex prod dev test staging live main default primary "
    "secondary header field raw first second last"
)
_PASSWORDS = words(
    "password passwords passwd passwds passphrase passphrases passcode passcodes pwd pwds passwort "
    "kennwort contrasena contraseña senha wachtwoord haslo hasło parola пароль 密码 密碼 パスワード 비밀번호"
)
_PASSWORD_ENDS = ("password", "passwd", "passphrase", "passwort")
_SECRETS = words(
    "secret secrets apikey apikeys secretkey privatekey accesskey accesstoken authtoken refreshtoken "
    "idtoken sessiontoken bearertoken clientsecret appsecret authorization cookie cookies setcookie "
    "credential credentials creds sessionid phpsessid jsessionid authkey accountkey"
)
_KEYS_OF = words(
    "api secret private access signing encryption master account storage service shared auth license ssh "
    "deploy webhook subscription admin app application client server root host hmac jwt session crypto "
    "vault function consumer sas openai anthropic azure aws gcp google github gitlab stripe sendgrid "
    "twilio datadog mailgun slack"
)
_TOKENS_OF = words(
    "access auth authentication authorization refresh id session bearer api bot github gitlab slack npm "
    "pypi hf huggingface csrf xsrf security user personal pat deploy service oauth jwt sas push device "
    "registration reset verification invite login webhook app master root secret private vault telegram "
    "discord stripe twilio openai anthropic client admin x"
)
_COUNTED_BY = words(
    "max min total prompt completion output input eos bos pad unk stop special num n next per think "
    "thinking cached reasoning page pagination sync start end mask cls sep image audio text logprob top"
)
"""Words before `token` that tell of a language model's tokens, or of pages."""
_NO_KEYS_OF = words(
    "public primary foreign idempotency cache sort partition routing dict json config lookup group order "
    "object row map hash hot short natural composite index s3 file"
)
_NUMBERS: dict[tuple[str, ...], Named] = {
    ("pin",): Named("pin", digits=4),
    ("otp",): Named("pin", digits=4),
    ("totp",): Named("pin", digits=4),
    ("cvv",): Named("card", digits=3),
    ("cvv2",): Named("card", digits=3),
    ("cvc",): Named("card", digits=3),
    ("csc",): Named("card", digits=3),
    ("card", "number"): Named("card", digits=12),
    ("cardnumber",): Named("card", digits=12),
    ("iban",): Named("iban", digits=10),
    ("account", "number"): Named("account", digits=6),
    ("accountnumber",): Named("account", digits=6),
    ("ssn",): Named("national_id", digits=7),
    ("social", "security", "number"): Named("national_id", digits=7),
    ("national", "id"): Named("national_id", digits=5),
    ("tax", "id"): Named("national_id", digits=5),
    ("taxid",): Named("national_id", digits=5),
    ("steuer", "id"): Named("national_id", digits=5),
    ("tin",): Named("national_id", digits=9),
    ("nino",): Named("national_id", digits=6),
    ("pesel",): Named("national_id", digits=11),
    ("bsn",): Named("national_id", digits=8),
    ("cpf",): Named("national_id", digits=11),
    ("aadhaar",): Named("national_id", digits=12),
    ("passport",): Named("national_id", digits=5),
    ("passport", "number"): Named("national_id", digits=5),
    ("passport", "no"): Named("national_id", digits=5),
    ("phone",): Named("phone", digits=7),
    ("phone", "number"): Named("phone", digits=7),
    ("mobile",): Named("phone", digits=7),
    ("telephone",): Named("phone", digits=7),
    ("fax",): Named("phone", digits=7),
    ("seed", "phrase"): SECRET,
    ("recovery", "phrase"): SECRET,
    ("recovery", "code"): SECRET,
    ("recovery", "codes"): SECRET,
    ("backup", "code"): SECRET,
    ("backup", "codes"): SECRET,
}
_MEANT = 3
"""Parts of the longest name in that table."""


@lru_cache(8192)
def named(name: str) -> Named | None:
    """What the value of this name is; None for a name that tells of no secret."""
    parts = parts_of(name)
    while len(parts) > 1 and (parts[-1] in _IDLE or parts[-1].isdigit()):
        parts = parts[:-1]
    if not parts:
        return None
    last, before = parts[-1], parts[-2] if len(parts) > 1 else ""
    if last in _PASSWORDS or last.endswith(_PASSWORD_ENDS) or parts[-3:] == ("mot", "de", "passe"):
        return PASSWORD
    if last in _SECRETS:
        return SECRET
    return _of_a_key(last, before) or next(
        filter(None, (_NUMBERS.get(parts[-length:]) for length in range(1, _MEANT + 1))), None
    )


def _of_a_key(last: str, before: str) -> Named | None:
    """What keys and tokens are, by the word before: an access token is secret, a public key is none."""
    if last in {"key", "keys"}:
        return None if before in _NO_KEYS_OF else SECRET if before in _KEYS_OF else LIKELY
    if last == "token" or (last == "tokens" and before in _TOKENS_OF):
        return None if before in _COUNTED_BY else SECRET if before in _TOKENS_OF else LIKELY
    return LIKELY if last in {"auth", "sig", "session"} or last.endswith(("token", "secret")) else None


def parts_of(name: str) -> tuple[str, ...]:
    """The words of a name in lower case: `awsSecret_key2` has `aws`, `secret`, `key`, `2`."""
    spaced = _HUMPS.sub("_", name[-LONGEST_NAME:])
    return tuple(part.lower() for part in _PARTS.findall(spaced))


@lru_cache(4096)
def names_an_id(name: str) -> bool:
    """Whether the values of this name are ids: numbers of theirs are neither cards nor phones."""
    parts = parts_of(name)
    return bool(parts) and parts[-1] in {"id", "ids", "uuid", "timestamp", "ts", "nonce", "hash", "digest", "sha"}
