"""The frameworks that run against the gateway: their scripts, and the locks that say their versions."""

from __future__ import annotations

import json
import os
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.clients.environments import (
    COMMAND_LINE,
    LOCKS,
    NODE_BIN,
    NODE_FOLDER,
    command_line_packages,
    node,
    python_of,
)

PYTHON_FOLDER = Path(__file__).parent / "python"


@dataclass(frozen=True)
class Framework:
    """One script. `lock`: its environment, `node` for a package of npm, `command_line` for an agent of its own."""

    name: str
    title: str
    package: str
    lock: str

    @property
    def language(self) -> str:
        return {"node": "Node", "command_line": "command line"}.get(self.lock, "Python")

    @property
    def key(self) -> str:
        """Its name among the results."""
        return f"{self.language.lower().replace(' ', '_')}-{self.name}"

    @property
    def script(self) -> Path:
        folder, ending = _SCRIPTS.get(self.lock, (PYTHON_FOLDER, "py"))
        return folder / f"{self.name}.{ending}"

    @property
    def version(self) -> str:
        """Of its package, as the lock has it."""
        if self.lock in _SCRIPTS:
            packages = json.loads((self.script.parent / "package-lock.json").read_text())["packages"]
            return packages[f"node_modules/{self.package}"]["version"]
        match = re.search(
            rf"^{re.escape(self.package)}==(\S+)$", (LOCKS / f"{self.lock}.txt").read_text(), re.MULTILINE
        )
        assert match, f"{self.lock}.txt has no {self.package}"
        return match[1]

    @property
    def setting(self) -> list[str]:
        """The lines of the script that set address, key and run: between its marks `guide` and `end`."""
        match = re.search(
            r"^ *(?:#|//) guide\n(.*?)^ *(?:#|//) end$", self.script.read_text(), re.DOTALL | re.MULTILINE
        )
        assert match, f"{self.script} does not mark the lines for the guide"
        return textwrap.dedent(match[1]).splitlines()

    def command(self) -> list[str]:
        """What runs it, in its environment, which is made first if it has to be."""
        if self.lock == "command_line":
            return ["/bin/sh", str(self.script)]
        return [str(node() if self.lock == "node" else python_of(self.lock)), str(self.script)]

    def variables(self) -> dict[str, str]:
        """What it needs in its process's environment."""
        if self.lock == "command_line":
            return {"PATH": f"{NODE_BIN}:{os.environ['PATH']}", "PACKAGES": str(command_line_packages())}
        return {"PATH": f"{Path(self.command()[0]).parent}:{os.environ['PATH']}"}


_SCRIPTS = {"node": (NODE_FOLDER, "mjs"), "command_line": (COMMAND_LINE, "sh")}
FRAMEWORKS = [
    Framework("openai_sdk", "OpenAI SDK", "openai", "openai"),
    Framework("openai_agents", "OpenAI Agents SDK", "openai-agents", "openai"),
    Framework("pydantic_ai_agent", "Pydantic AI", "pydantic-ai-slim", "openai"),
    Framework("anthropic_sdk", "Anthropic SDK", "anthropic", "openai"),
    Framework("langchain_agent", "LangChain and LangGraph", "langchain", "langchain"),
    Framework("llamaindex", "LlamaIndex", "llama-index-core", "llamaindex"),
    Framework("dspy_react", "DSPy", "dspy", "litellm"),
    Framework("smolagents_tools", "smolagents", "smolagents", "litellm"),
    Framework("google_adk", "Google ADK", "google-adk", "litellm"),
    Framework("litellm_sdk", "LiteLLM SDK", "litellm", "litellm"),
    Framework("instructor_sdk", "Instructor", "instructor", "instructor"),
    Framework("mini_swe_agent", "mini-SWE-agent", "mini-swe-agent", "instructor"),
    Framework("crewai_crew", "CrewAI", "crewai", "crewai"),
    Framework("autogen_agent", "AutoGen", "autogen-agentchat", "microsoft"),
    Framework("semantic_kernel_agent", "Semantic Kernel", "semantic-kernel", "microsoft"),
    Framework("agent_framework_agent", "Microsoft Agent Framework", "agent-framework-core", "agentframework"),
    Framework("strands_agent", "Strands Agents", "strands-agents", "strands"),
    Framework("agno_agent", "Agno", "agno", "strands"),
    Framework("haystack_agent", "Haystack", "haystack-ai", "strands"),
    Framework("inspect_eval", "Inspect", "inspect-ai", "inspect"),
    Framework("ag2_agent", "AG2", "ag2", "ag2"),
    Framework("mirascope_calls", "Mirascope", "mirascope", "mirascope"),
    Framework("aisuite_client", "aisuite", "aisuite", "aisuite"),
    Framework("openai_sdk", "OpenAI SDK", "openai", "node"),
    Framework("openai_agents", "OpenAI Agents SDK", "@openai/agents", "node"),
    Framework("ai_sdk", "Vercel AI SDK", "ai", "node"),
    Framework("langchain_agent", "LangChain.js", "langchain", "node"),
    Framework("codex", "Codex", "@openai/codex", "command_line"),
    Framework("claude_code", "Claude Code", "@anthropic-ai/claude-code", "command_line"),
]
