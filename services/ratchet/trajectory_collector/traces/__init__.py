"""Telemetry becomes trajectories: when a trace is over (`closing`), and what its spans add up to (`span_tree`,
`folding`, `judgements`); `assembler` reads, folds and publishes."""
