"""Where spans go, as people write it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ratchet.extras.span_exporter.settings import Settings


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://localhost:6006", "http://localhost:6006"),
        ("https://cloud.langfuse.com/api/public/otel/", "https://cloud.langfuse.com/api/public/otel"),
        ("http://jaeger:4318/v1/traces", "http://jaeger:4318"),
        ("none", None),
        ("", None),
        (None, None),
    ],
)
def test_an_endpoint_is_a_base_or_a_whole_url(endpoint: str | None, url: str | None) -> None:
    assert Settings.model_validate({"endpoint": endpoint}).base_url == url


def test_headers_are_written_as_opentelemetry_has_them() -> None:
    settings = Settings.model_validate({"headers": "Authorization=Basic%20cGs6c2s%3D, x-tenant = a=b"})
    assert settings.sent_headers == {"authorization": "Basic cGs6c2s=", "x-tenant": "a=b"}
    assert "cGs6" not in repr(settings)
    assert Settings.model_validate({"headers": "none"}).sent_headers == {}


@pytest.mark.parametrize("headers", ["secret", "=secret", "a=b\nsecret: c", "a=secret,"])
def test_wrong_headers_are_refused_without_quoting_them(headers: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings.model_validate({"headers": headers})
    assert "secret" not in str(refused.value.errors(include_input=False))
