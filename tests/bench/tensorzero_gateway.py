"""TensorZero's embedded gateway as a process, to measure it beside ours.

Run: `ENVIRONMENT/bin/python tests/bench/tensorzero_gateway.py CONFIG PORT`, in an environment that has TensorZero and
none of this repository's packages. It listens on a port of its own choice; `http://127.0.0.1:PORT` answers with its
base URL.
"""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import openai
import tensorzero


class Address(BaseHTTPRequestHandler):
    """Answers with the gateway's base URL."""

    url = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.url)))
        self.end_headers()
        self.wfile.write(self.url)


if __name__ == "__main__":
    client = tensorzero.patch_openai_client(
        openai.OpenAI(api_key="none"), config_file=sys.argv[1], clickhouse_url=None, async_setup=False
    )
    Address.url = str(client.base_url).rstrip("/").encode()
    HTTPServer(("127.0.0.1", int(sys.argv[2])), Address).serve_forever()
