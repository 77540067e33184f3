"""How threads of torch wait for each other, set for every process that computes."""

PASSIVE = {"OMP_WAIT_POLICY": "passive"}
"""They sleep. Spinning ones took 11 to 15 times as long where two shared two processors with other work. Torch reads it
once, when it is imported."""
