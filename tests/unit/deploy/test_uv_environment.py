"""uv finds packages where pip is configured to find them."""

from __future__ import annotations

from tools.environment.uv_environment import options, uv_environment

LISTING = r"""
:env:.default-timeout='180'
:env:.find-links='/opt/wheels'
freeze.timeout='1'
global.cert='/etc/ssl/ca.crt'
global.extra-index-url='https://a.example/simple\nhttps://b.example/simple'
global.find-links='/elsewhere /more'
global.timeout='10'
install.index-url='https://user:p%40ss@index.example/simple'
"""


def test_uv_gets_the_configuration_of_pip() -> None:
    assert uv_environment(options(LISTING), {}) == {
        "UV_DEFAULT_INDEX": "https://user:p%40ss@index.example/simple",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_FIND_LINKS": "/opt/wheels",
        "SSL_CERT_FILE": "/etc/ssl/ca.crt",
        "UV_HTTP_TIMEOUT": "180",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_a_list_is_joined_as_uv_reads_it() -> None:
    assert uv_environment({"find-links": "/a\n/b"}, {})["UV_FIND_LINKS"] == "/a,/b"


def test_uv_s_own_variables_win() -> None:
    assert uv_environment(options(LISTING), {"UV_INDEX": "mine", "UV_INDEX_STRATEGY": "first-index"}).keys() == {
        "UV_DEFAULT_INDEX",
        "UV_FIND_LINKS",
        "SSL_CERT_FILE",
        "UV_HTTP_TIMEOUT",
    }


def test_a_pip_without_configuration_leaves_uv_to_itself() -> None:
    assert uv_environment(options(""), {}) == {"UV_INDEX_STRATEGY": "unsafe-best-match"}
