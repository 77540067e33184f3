"""A judge: a chat model that scores work by a rubric, or compares two answers; cached by digest, within a budget."""
