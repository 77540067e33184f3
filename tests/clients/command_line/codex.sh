# Codex, OpenAI's command-line agent, with its default model.
. "$(dirname "$0")/playing.sh"

# guide
export CODEX_API_KEY="$KEY"
gateway="openai_base_url=$BASE_URL"
named="openai_base_url=${BASE_URL%/v1}/t/nightly-17/v1"
# codex exec -c "$gateway" "<task>"; with the name of a role as --model, also -c web_search="disabled"
# end

run() {
  setting=$1
  shift
  node "$PACKAGES/@openai/codex/bin/codex.js" exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \
    -c analytics.enabled=false -c check_for_update_on_startup=false -c "$setting" "$@"
}

code() {
  run "$gateway" "$CODE" && cat greeting.txt
}

play plain run "$named" "$PLAIN"
play code code
play delegate run "$gateway" "$DELEGATE"
play compact run "$gateway" -c model_auto_compact_token_limit=20 "$COMPACT"
played
