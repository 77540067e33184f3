"""The table of what redaction takes out: each kind once, with its marks, how it is found, and an example.

A kind is looked for only where one of its marks stands. Keys of providers are found by the rules of the package
detect-secrets where it has one; the rows of our own are for what it lacks. Examples are made up; the planted corpus of
the tests puts each in many wrappings (`tests/support/secret_corpus.py`), and the guide's table names each row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ratchet.core.rules.redaction import checks, finders
from ratchet.core.rules.redaction.finders import Find, at, of_package
from ratchet.core.rules.redaction.values import after_an_option, beside_its_name, in_prose


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of secret or personal data."""

    kind: str
    """What its placeholder says."""
    title: str
    """What people call it."""
    examples: tuple[str, ...]
    """Made up; tests plant each in many wrappings."""
    find: Find
    marks: tuple[str, ...] = ()
    """Texts one of which stands in every occurrence."""
    pattern: str = ""
    """For a number without marks: what stands at its place."""
    accept: Callable[[str], bool] = bool
    """And what tells it from others."""


def own(title: str, example: str, marks: str, pattern: str, accept: Callable[[str], bool] = checks.has_digit) -> Kind:
    """A row for keys of a provider that detect-secrets has no rule for, or a narrower one."""
    return Kind("api_key", title, (example,), at("api_key", pattern, accept), tuple(marks.split()))


def kept(title: str, example: str, marks: str, *rules: str, back: int = 0) -> Kind:
    """A row for keys of a provider, by rules of detect-secrets."""
    return Kind("api_key", title, (example,), of_package(*rules, back=back), tuple(marks.split()))


def number(kind: str, title: str, examples: str, pattern: str, accept: Callable[[str], bool] = bool) -> Kind:
    """A row for numbers that their form, or a check, tells from others; several examples have `|` between them."""
    return Kind(kind, title, tuple(examples.split("|")), at(kind, pattern, accept), pattern=pattern, accept=accept)


_RANDOM = "aB3xK9mQ7tR2vW5yZ8cD4fG6hJ1kL0nPqStUwXzAbCdEfGhIjKlMnOpQrStUvWxYz0123456789aB3xK9mQ7tR2vW5yZ8cD4f"
"""Characters for examples, which no provider issues."""


def _of(prefix: str, length: int) -> str:
    return prefix + _RANDOM[:length]


_HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

_SLACK = "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xoxd-"
_NO_MORE = r"(?![A-Za-z0-9])"

PROVIDERS = (
    kept(
        "Azure storage key",
        "AccountKey=" + (_RANDOM * 2)[:86] + "==",
        "AccountKey=",
        "azure_storage_key.AzureStorageKeyDetector",
    ),
    kept("GitHub token", _of("ghp_", 36), "ghp_ gho_ ghu_ ghs_ ghr_", "github_token.GitHubTokenDetector"),
    kept(
        "GitLab token",
        _of("glpat-", 20),
        "glpat- gldt- glft- glsoat- glrt- glcbt- glimt- glptt- glagent- gloas-",
        "gitlab_token.GitLabTokenDetector",
    ),
    kept("Mailchimp key", _HEX[:32] + "-us12", "-us", "mailchimp.MailchimpDetector", back=32),
    kept("PyPI token", "pypi-AgEIcHlwaS5vcmc" + _RANDOM[:75], "pypi-", "pypi_token.PypiTokenDetector"),
    kept(
        "Slack token",
        "xoxb-123456789012-" + "a1b2c3d4e5f6",
        _SLACK,
        "slack.SlackDetector",
    ),
    kept(
        "Slack webhook",
        "https://hooks.slack.com/services/T0ABCDEFG/B0ABCDEFG/" + _RANDOM[:24],
        "https:",
        "slack.SlackDetector",
    ),
    kept("Square secret", "sq0csp-" + _RANDOM[:43], "sq0csp-", "square_oauth.SquareOAuthDetector"),
    kept("Stripe key", _of("sk_live_", 24), "k_live_", "stripe.StripeDetector"),
    own("OpenAI, Anthropic and others", _of("sk-proj-", 40), "sk-", r"(?<![A-Za-z0-9])sk-[\w-]{16,512}"),
    own("GitHub, short or fine-grained", _of("github_pat_", 40), "github_pat_", r"github_pat_\w{20,255}"),
    own("GitHub, of another length", _of("ghp_", 30), "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[opusr]_[A-Za-z0-9]{20,255}"),
    own("GitLab, of another length", _of("glpat-", 16), "glpat-", r"glpat-[\w-]{16,64}"),
    own(
        "Slack, of another form",
        _of("xoxe-", 30),
        _SLACK,
        r"xox[abeoprsd]-[\w-]{10,255}",
    ),
    own(
        "Stripe, of tests and restricted",
        _of("rk_test_", 24),
        "k_live_ k_test_",
        r"k_(?:live|test)_[A-Za-z0-9]{16,128}",
    ),
    own("Google access token", _of("ya29.", 60), "ya29.", r"ya29\.[\w-]{20,512}"),
    own("Google client secret", _of("GOCSPX-", 28), "GOCSPX-", r"GOCSPX-[\w-]{20,64}"),
    own("Hugging Face token", _of("hf_", 34), "hf_", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{20,64}"),
    own("Groq key", _of("gsk_", 52), "gsk_", r"gsk_[A-Za-z0-9]{20,128}"),
    own("xAI key", _of("xai-", 80), "xai-", r"xai-[A-Za-z0-9]{40,128}"),
    own("Perplexity key", _of("pplx-", 48), "pplx-", r"pplx-[A-Za-z0-9]{32,64}"),
    own("Replicate token", _of("r8_", 37), "r8_", r"r8_[A-Za-z0-9]{30,64}"),
    own("LangSmith key", f"lsv2_pt_{_HEX[:32]}_{_HEX[:10]}", "lsv2_", r"lsv2_(?:pt|sk)_\w{32,64}"),
    own("npm token", _of("npm_", 36), "npm_", r"npm_[A-Za-z0-9]{30,64}"),
    own("Docker token", _of("dckr_pat_", 27), "dckr_pat_", r"dckr_pat_[\w-]{20,64}"),
    own("PyPI token, cut", _of("pypi-A", 40), "pypi-", r"pypi-A[\w-]{20,512}"),
    own("DigitalOcean token", f"dop_v1_{_HEX}", "dop_v1_ doo_v1_ dor_v1_", r"do[opr]_v1_[0-9a-f]{40,64}"),
    own("Databricks token", f"dapi{_HEX[:32]}", "dapi", r"dapi[0-9a-f]{32}"),
    own("HashiCorp Vault token", _of("hvs.", 60), "hvs. hvb.", r"hv[sb]\.[\w-]{20,512}"),
    own("webhook secret (Svix, Stripe)", _of("whsec_", 32), "whsec_", r"whsec_[A-Za-z0-9+/=]{20,128}"),
    own("Shopify token", f"shpat_{_HEX[:32]}", "shpat_ shpss_ shpca_", r"shp(?:at|ss|ca)_[0-9a-fA-F]{32}"),
    own("New Relic key", "NRAK-" + _RANDOM[:27].upper(), "NRAK-", r"NRAK-[A-Z0-9]{27}"),
    own("Linear key", _of("lin_api_", 40), "lin_api_", r"lin_api_[A-Za-z0-9]{32,64}"),
    own("Notion token", _of("ntn_", 46), "ntn_", r"ntn_[A-Za-z0-9]{40,64}"),
    own("Mailgun key", f"key-{_HEX[:32]}", "key-", r"key-[0-9a-f]{32}"),
)

LETTERED = (
    kept("SendGrid key", f"SG.{_RANDOM[:22]}.{_RANDOM[:43]}", "", "sendgrid.SendGridDetector"),
    kept("AWS access key id", "AKIAIOSFODNN7EXAMPLE", "", "aws.AWSKeyDetector"),
    kept("Artifactory token", _of(" AKC", 40) + " ", "", "artifactory.ArtifactoryDetector"),
    own("Google API key", _of("AIza", 35), "", r"AIza[\w-]{35}"),
    own("Atlassian token", _of("ATATT3x", 60), "", r"ATATT3x[\w=-]{40,512}"),
    Kind("api_key", "Twilio key", (f"SK{_HEX[:32]}",), of_package("twilio.TwilioKeyDetector")),
    Kind(
        "api_key",
        "Discord bot token",
        (f"M{_RANDOM[:23]}.{_RANDOM[3:9]}.{_RANDOM[5:32]}",),
        of_package("discord.DiscordBotTokenDetector"),
    ),
    number(
        "api_key",
        "NKEY seed of NATS",
        "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",
        r"S[UAOCNX][A-Z2-7]{56}",
        checks.has_digit,
    ),
    number(
        "iban",
        "bank account (IBAN)",
        "DE89 3704 0044 0532 0130 00",
        r"[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,4})?" + _NO_MORE,
        checks.is_iban,
    ),
    number(
        "national_id",
        "Italy, codice fiscale",
        "RSSMRA85T10A562S",
        r"[A-Z]{6}\d\d[A-EHLMPRST]\d\d[A-Z]\d{3}[A-Z]" + _NO_MORE,
    ),
    number(
        "national_id",
        "United Kingdom, national insurance",
        "QQ 12 34 56 C",
        r"(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PRQSTW-Z][A-CEGHJ-NPRQSTW-Z] ?\d\d ?\d\d ?\d\d ?[A-D]" + _NO_MORE,
    ),
    number("national_id", "Spain, NIE", "X1234567L", r"[XYZ]-?\d{7}-?[A-Z]" + _NO_MORE, checks.is_dni),
    number("national_id", "India, PAN", "ABCPE1234F", r"[A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z]" + _NO_MORE),
)

NUMERIC = (
    number(
        "card",
        "payment card",
        "4111 1111 1111 1111|378282246310005|5555.5555.5555.4444",
        r"\d{13,19}(?!\d)|\d{4}(?P<by>[ .\-\u00a0])\d{4}(?P=by)\d{4}(?P=by)\d{4}(?:(?P=by)\d{3})?(?!\d)"
        r"|\d{4}(?P<amex>[ .\-\u00a0])\d{6}(?P=amex)\d{5}(?!\d)",
        checks.is_card,
    ),
    number("api_key", "Telegram bot token", "1234567890:" + _RANDOM[:35], r"\d{8,10}:[0-9A-Za-z_-]{35}"),
    number("national_id", "United States, social security", "536-90-4399", r"\d{3}-\d{2}-\d{4}(?!\d)", checks.is_ssn),
    number("national_id", "Brazil, CPF", "529.982.247-25", r"\d{3}\.\d{3}\.\d{3}-\d\d(?!\d)", checks.is_cpf),
    number("national_id", "Switzerland, AHV", "756.9217.0769.85", r"756\.\d{4}\.\d{4}\.\d\d(?!\d)", checks.is_ahv),
    number(
        "national_id",
        "France, NIR",
        "2 55 08 14 168 025 38",
        r"[12] ?\d\d ?[0-9]\d ?\d[\dAB] ?\d{3} ?\d{3} ?\d\d(?!\d)",
        checks.is_nir,
    ),
    number("national_id", "Spain, DNI", "12345678Z", r"(?<!\d[.,])\d{8}-?[A-Z]" + _NO_MORE, checks.is_dni),
    number("national_id", "India, Aadhaar", "2341 2341 2346", r"\d{4} \d{4} \d{4}(?![ -]?\d)", checks.is_aadhaar),
    Kind("phone", "phone", ("+44 20 7946 0958", "(415) 555-0123", "415-555-0123", "030 901820"), finders.phone),
)

KINDS = (
    Kind(
        "private_key",
        "private key (PEM)",
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----",),
        at("private_key", finders.PEM),
        ("-----",),
    ),
    *PROVIDERS,
    Kind(
        "token",
        "JSON web token",
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",),
        at("token", r"(?<![\w-]\.)eyJ[\w-]{8,8192}+\.[\w-]{8,16384}+\.[\w-]{0,8192}+"),
        ("eyJ",),
    ),
    Kind(
        "token",
        "bearer token",
        ("Bearer abc123def456",),
        at("token", r"earer[ \t]{1,4}(?P<secret>[A-Za-z0-9._~+/=-]{8,4096}+)", checks.is_token, re.IGNORECASE),
        ("earer ", "EARER "),
    ),
    Kind("password", "password in a URL", ("postgres://ada:lovelace@db/x",), finders.url_password, ("://",)),
    Kind(
        "password",
        "user and password of a command",
        ("curl -u ada:lovelace1 https://x",),
        at(
            "password",
            r"(?: -u| ?--?user|--proxy-user)[ =]['\"]?[^\s:'\"]{1,128}:" r"(?P<secret>[^\s'\"\[$][^\s'\"]{0,256})",
        ),
        (" -", "--"),
    ),
    Kind("secret", "value beside its name", ("password = hunter2!",), beside_its_name, ("=", ":", ">")),
    Kind("secret", "option of a command", ("run --password hunter2",), after_an_option, ("--",)),
    Kind(
        "password",
        "password in prose",
        ("my password is hunter2!",),
        in_prose,
        ("ssw", "ssphrase", "sscode", "nnwort", "traseña", "senha", "de passe"),
    ),
    Kind("email", "e-mail address", ("mia.li+x@mail.example.com",), finders.email, ("@",)),
    *LETTERED,
    *NUMERIC,
)
