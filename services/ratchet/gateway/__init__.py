"""The OpenAI-compatible front door: routes every trajectory to an arm, and captures every call as a turn."""
