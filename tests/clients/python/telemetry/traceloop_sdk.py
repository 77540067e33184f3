"""Traceloop's SDK, which instruments OpenAI's and Anthropic's."""

import os

from sending import anthropic_loop, openai_loop
from traceloop.sdk import Traceloop
from traceloop.sdk.decorators import agent

Traceloop.init(app_name="shop", api_endpoint=os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"], disable_batch=True)


@agent(name="clerk")
def clerk() -> None:
    openai_loop()
    anthropic_loop()


clerk()
