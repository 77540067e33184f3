"""Which addresses lead to an object of the bucket: no other one reaches the store."""

from __future__ import annotations

import pytest

from ratchet.core.errors import Rejected
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects

NOWHERE = "http://127.0.0.1:9"
"""Nothing listens there: what is asked of the store fails otherwise."""


@pytest.mark.parametrize(
    "key", ["../../etc/x.json", "a/../b.json", "a//b.json", "./a", "a/", "", "a\0b.json", "a\x1b.json", "a\nb.json"]
)
def test_object_address_without_sense_is_refused_unasked(key: str) -> None:
    objects = Objects(SharedSettings(s3_endpoint=NOWHERE))
    with pytest.raises(Rejected, match="not an s3 uri"):
        objects.exists(f"s3://ratchet/{key}")


@pytest.mark.parametrize("uri", ["s3://", "s3://ratchet", "s3:///key", "http://ratchet/key", "ratchet/key"])
def test_object_address_of_another_form_is_refused(uri: str) -> None:
    with pytest.raises(Rejected, match="not an s3 uri"):
        Objects(SharedSettings(s3_endpoint=NOWHERE)).get(uri)


def test_object_address_in_another_bucket_is_refused_unasked() -> None:
    with pytest.raises(Rejected, match=r"s3://theirs/a\.json is in another bucket: this installation reads ratchet"):
        Objects(SharedSettings(s3_endpoint=NOWHERE)).exists("s3://theirs/a.json")
