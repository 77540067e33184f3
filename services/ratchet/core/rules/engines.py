"""What the engines that hold policies have in common: vLLM with Ratchet's plugin, and engine_local."""

VLLM, ENGINE_LOCAL = "vllm", "engine_local"
"""The kinds of engines."""
ADAPTERS_ONLY = frozenset({VLLM})
"""Kinds that hold adapters of the one base model that they were started with, and no whole model."""
ANY_ROLE = "*"
"""In the roles of an engine: every role that no engine names."""

POLICY_REFUSED = 424
"""Status of an answer to any call for a policy that this engine cannot serve, with the reason: its bytes are not the
ones that were named, its rank, base or kind does not fit. The request is not to blame. vLLM itself never answers so."""

POLICY_NOT_LOADED = "was found but could not be loaded"
"""What vLLM says, with status 400, after any failure of its workers to load an adapter: no memory, a dead engine core,
a caller that went away. It says nothing about the policy: Ratchet's plugin answers `POLICY_REFUSED` for one that does
not fit."""
MOST_LOADS = 16
"""Names of policies that an engine looks up, downloads or loads at a time; it refuses calls for any other one."""
LOADS_BUSY = f"{MOST_LOADS} other policies are being loaded: try again later"
PROCESSED_LOGPROBS, RAW_LOGPROBS = "processed_logprobs", "raw_logprobs"
"""vLLM's `--logprobs-mode`: after temperature and masks, as what was drawn from, or before."""
