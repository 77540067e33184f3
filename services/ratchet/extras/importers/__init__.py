"""Trajectories that other systems logged, published once each."""

from ratchet.core.plugins import PluginTable, instance_of
from ratchet.extras.importers.base import Importer
from ratchet.extras.importers.hugging_face import HUGGING_FACE
from ratchet.extras.importers.langfuse import LANGFUSE
from ratchet.extras.importers.langsmith import LANGSMITH
from ratchet.extras.importers.openai_chat import OPENAI_CHAT
from ratchet.extras.importers.tau_bench import TAU_BENCH

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
