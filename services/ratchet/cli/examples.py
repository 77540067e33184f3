"""Two examples of every command, for its help and for docs/cli.md. A test parses each with the command's own parser."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "up": ("ratchet up --upstream openai", "ratchet up --detach --free-ports --dir ~/ratchet"),
    "down": ("ratchet down", "ratchet down --dir ~/ratchet"),
    "env": ('eval "$(ratchet env)"', "ratchet env --json"),
    "backup": ("ratchet backup /mnt/backup/monday", "ratchet backup /mnt/backup/monday --dry-run"),
    "restore": ("ratchet restore /mnt/backup/monday --dir ~/restored", "ratchet restore /mnt/backup/monday --replace"),
    "url": ("ratchet url", "ratchet url coordinator"),
    "open": ("ratchet open", "ratchet open --no-browser"),
    "status": ("ratchet status", "ratchet status dpo --role support"),
    "doctor": ("ratchet doctor", "ratchet doctor --json"),
    "logs": ("ratchet logs gateway -f", "ratchet logs trainer_worker --lines 200"),
    "train": (
        "ratchet train support --algorithm sft --base-model ./model --wait",
        "ratchet train support --algorithm rloo --samples 200 --set learning_rate=1e-5 --dry-run",
    ),
    "dpo-train": (
        "ratchet dpo-train --policy-model ./model --dataset-dir pairs --lora",
        "ratchet dpo-train --policy-model ./model --dataset-dir pairs --output-dir out --beta 0.2 --epochs 2",
    ),
    "rm-train": (
        "ratchet rm-train --base-model ./model --dataset-dir pairs",
        "ratchet rm-train --base-model ./model --dataset-dir pairs --output-dir out --max-steps 500 --bf16",
    ),
    "plan": ("ratchet plan --role support", "ratchet plan --role support --json"),
    "eval": (
        "ratchet eval support@latest --against support --tasks tasks.jsonl",
        "ratchet eval support@3 --against openai/gpt-5-mini --tasks tasks.jsonl --samples 4 --no-worse-than 0.05",
    ),
    "model": ("ratchet model smollm2 models/smollm2", "ratchet model smollm2.gguf models/smollm2"),
    "cancel": ("ratchet cancel latest", "ratchet cancel 019ab3f2-71c4 --now"),
    "resume": ("ratchet resume latest", "ratchet resume 019ab3f2-71c4"),
    "feedback": (
        "ratchet feedback latest --thumbs up",
        'ratchet feedback 019ab3f2-71c4 --stars 2 --comment "refunded the wrong order" --rater ana',
    ),
    "demo": ("ratchet demo", "ratchet demo --full --plain"),
    "usage": ("ratchet usage --by model --since 24h", "ratchet usage --by hour --role support --json"),
    "plugins": ("ratchet plugins", "ratchet plugins --no-check --json"),
    "completion": ("source <(ratchet completion bash)", "ratchet completion fish"),
    "jobs": ("ratchet jobs --role support", "ratchet jobs --state failed --json"),
    "jobs show": ("ratchet jobs show latest", "ratchet jobs show 019ab3f2-71c4 --json"),
    "import openai-chat": (
        "ratchet import openai-chat examples.jsonl --role support",
        "ratchet import openai-chat pairs.jsonl --role support --judged-by human --dry-run",
    ),
    "import langfuse": (
        "ratchet import langfuse export/ --role support --dry-run",
        "ratchet import langfuse export/ --role support --outcome correctness",
    ),
    "import langsmith": (
        "ratchet import langsmith runs.jsonl --role support --dry-run",
        "ratchet import langsmith export/ --role support --outcome user_score",
    ),
    "import hugging-face": (
        "ratchet import hugging-face dataset/ --role support --model gpt-4o",
        "ratchet import hugging-face train.parquet --role support --judged-by human",
    ),
    "import python": (
        "ratchet import python logs.py:conversation calls.jsonl --role support --dry-run",
        "ratchet import python acme.logs:thread calls.jsonl --role support --group-by ticket",
    ),
    "import tau-bench": (
        "ratchet import tau-bench results.json --role airline",
        "ratchet import tau-bench results.json --role airline --dry-run",
    ),
    "export trajectories": (
        "ratchet export trajectories -o trajectories.jsonl --role support",
        "ratchet export trajectories -o newest.parquet --limit 100",
    ),
    "export executions": (
        "ratchet export executions -o executions.jsonl",
        "ratchet export executions -o newest.jsonl --role support --limit 100",
    ),
    "export rewards": (
        "ratchet export rewards -o rewards.jsonl",
        "ratchet export rewards -o rewards.parquet --role support",
    ),
    "export tasks": (
        "ratchet export tasks -o tasks.jsonl --role support",
        "ratchet export tasks -o tasks.jsonl --role support --since 2026-10-01 --limit 200",
    ),
    "export tensorzero": (
        "ratchet export tensorzero -o tensorzero.toml",
        "ratchet export tensorzero -o tensorzero.toml --role support",
    ),
    "trajectories list": (
        "ratchet trajectories list --role support --limit 50",
        "ratchet trajectories list --outcome failure --json",
    ),
    "trajectories show": ("ratchet trajectories show latest", "ratchet trajectories show 019ab3f2-71c4 --full"),
    "trajectories tail": ("ratchet trajectories tail --role support", "ratchet trajectories tail --json"),
    "capture report": ("ratchet capture report", "ratchet capture report --role support --since 24h"),
    "policies list": ("ratchet policies list", "ratchet policies list support --json"),
    "policies show": ("ratchet policies show support", "ratchet policies show support@3 --parents 5"),
    "policies export": (
        "ratchet policies export support@3 ./support-3",
        "ratchet policies export support@latest --dry-run",
    ),
    "policies import": (
        "ratchet policies import ./adapter --role support",
        "ratchet policies import ./adapter --role support --dry-run",
    ),
    "data argilla-export": (
        "ratchet data argilla-export --input records.json --output pairs",
        "ratchet data argilla-export --input records.json --output pairs --json",
    ),
    "dataset show": ("ratchet dataset show latest", "ratchet dataset show 019ab3f2-71c4 --json"),
    "dataset build": (
        "ratchet dataset build --role support --algorithm sft --min-reward 0.8",
        "ratchet dataset build --role support --algorithm dpo -o pairs --dry-run",
    ),
    "dataset explain": (
        "ratchet dataset explain --role support --algorithm rloo",
        "ratchet dataset explain latest --model ./model",
    ),
    "dataset export": (
        "ratchet dataset export latest -o rows.jsonl",
        "ratchet dataset export latest -o pairs.jsonl --trl preference --eval-ratio 0.1",
    ),
    "preferences derive": (
        "ratchet preferences derive --role support --dry-run",
        "ratchet preferences derive --role support",
    ),
    "preferences rank": (
        "ratchet preferences rank --role support --model gpt-4o",
        "ratchet preferences rank --role support --model support@3 --dry-run",
    ),
    "preferences add": (
        "ratchet preferences add --file pairs.jsonl",
        'ratchet preferences add --role support --prompt "Hi" --a "Hello!" --b "Go away" --choice a --rater ana',
    ),
    "preferences list": ("ratchet preferences list --role support", "ratchet preferences list --json"),
    "preferences raters": (
        "ratchet preferences raters --role support",
        "ratchet preferences raters --role support --json",
    ),
    "preferences export": (
        "ratchet preferences export pairs.jsonl --role support",
        "ratchet preferences export pairs.jsonl",
    ),
    "rollout status": ("ratchet rollout status support", "ratchet rollout status --json"),
    "rollout start": (
        "ratchet rollout start support 4 --reason 'better on refunds'",
        "ratchet rollout start support latest --strategy blue_green --dry-run",
    ),
    "rollout approve": (
        "ratchet rollout approve support --reason 'read forty answers'",
        "ratchet rollout approve support --dry-run",
    ),
    "rollout pause": ("ratchet rollout pause support --reason 'on call at nine'", "ratchet rollout pause support"),
    "rollout resume": ("ratchet rollout resume support", "ratchet rollout resume support --dry-run"),
    "rollout promote": ("ratchet rollout promote support", "ratchet rollout promote support --override --dry-run"),
    "rollout rollback": (
        "ratchet rollout rollback support --reason 'refunds twice'",
        "ratchet rollout rollback support --dry-run",
    ),
    "rollout revert": (
        "ratchet rollout revert support --reason 'complaints since noon'",
        "ratchet rollout revert support --dry-run",
    ),
    "rollout audit": ("ratchet rollout audit support", "ratchet rollout audit support --json"),
    "rollout history": ("ratchet rollout history support", "ratchet rollout history support --limit 100 --json"),
    "storage sweep": ("ratchet storage sweep --dry-run", "ratchet storage sweep --json"),
    "config show": ("ratchet config show gateway", "ratchet config show --json"),
    "config check": ("ratchet config check", "ratchet config check --json"),
    "keys create": ("ratchet keys create ci --scope view", "ratchet keys create ana --scope annotate --dry-run"),
    "keys list": ("ratchet keys list", "ratchet keys list --json"),
    "keys revoke": ("ratchet keys revoke 4f1c9a02", "ratchet keys revoke latest --dry-run"),
    "deadletters list": ("ratchet deadletters list", "ratchet deadletters list --last 100 --json"),
    "deadletters show": ("ratchet deadletters show 17", "ratchet deadletters show latest --json"),
    "deadletters replay": (
        "ratchet deadletters replay latest",
        "ratchet deadletters replay --stream RL_TURNS --since 2026-11-20 --dry-run",
    ),
    "deadletters drop": ("ratchet deadletters drop 17", "ratchet deadletters drop --all --dry-run"),
    "contract list": ("ratchet contract list", "ratchet contract list --json"),
    "contract show": ("ratchet contract show turn.v1", "ratchet contract show trajectory.v1 --json"),
    "contract openapi": ("ratchet contract openapi coordinator", "ratchet contract openapi gateway"),
    "contract asyncapi": ("ratchet contract asyncapi", "jq .channels <(ratchet contract asyncapi)"),
    "contract check": (
        "ratchet contract check turn.schema.json",
        "ratchet contract check turn.schema.json --days 30 --json",
    ),
}
"""By the words of a command. The first is what most people need first."""
