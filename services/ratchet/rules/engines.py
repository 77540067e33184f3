"""What the engines that hold policies have in common: vLLM with Ratchet's plugin, and engine_local."""

POLICY_REFUSED = 424
"""Status of an answer to any call for a policy that this engine cannot serve, with the reason: its bytes are not the
ones that were named, its rank, base or kind does not fit. The request is not to blame. vLLM itself never answers so."""
