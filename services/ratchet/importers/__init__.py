"""Trajectories that other systems logged, published once each."""

from ratchet.importers.base import Importer
from ratchet.importers.hugging_face import HUGGING_FACE
from ratchet.importers.langfuse import LANGFUSE
from ratchet.importers.langsmith import LANGSMITH
from ratchet.importers.openai_chat import OPENAI_CHAT
from ratchet.importers.tau_bench import TAU_BENCH
from ratchet.plugins import PluginTable, instance_of

IMPORTERS: PluginTable[Importer] = PluginTable(
    "ratchet.importers",
    "importer",
    {
        "openai-chat": OPENAI_CHAT,
        "langfuse": LANGFUSE,
        "langsmith": LANGSMITH,
        "hugging-face": HUGGING_FACE,
        "tau-bench": TAU_BENCH,
    },
    instance_of(Importer),
)
"""Formats by name. A further one is one file and one entry here, or a package."""
