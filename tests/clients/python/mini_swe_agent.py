"""mini-SWE-agent: its default agent, whose only tool is a shell."""

from __future__ import annotations

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from playing import BASE_URL, KEY, MODEL, PLAIN, RUN, TOOLS, play

# guide
gateway = {"model_name": f"openai/{MODEL}", "model_kwargs": {"api_base": BASE_URL, "api_key": KEY}}
named = {"model_name": f"openai/{MODEL}", "model_kwargs": {"api_base": BASE_URL, "api_key": KEY, "extra_headers": RUN}}
# end

TEMPLATES = {"system_template": "You may use a shell.", "instance_template": "{{task}}"}


def run(options: dict[str, object], text: str) -> str:
    agent = DefaultAgent(LitellmModel(**options), LocalEnvironment(), **TEMPLATES)
    return str(agent.run(text))


play(plain=lambda: run(named, PLAIN), tools=lambda: run(gateway, TOOLS))
