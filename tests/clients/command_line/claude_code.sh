# Claude Code, Anthropic's command-line agent, with its default model.
. "$(dirname "$0")/playing.sh"

# guide
export ANTHROPIC_API_KEY="$KEY" ANTHROPIC_BASE_URL="${BASE_URL%/v1}"
named="x-ratchet-run: nightly-17"
# claude -p "<task>"; ANTHROPIC_CUSTOM_HEADERS="$named" claude -p "<task>"
# end

run() {
  node "$PACKAGES/@anthropic-ai/claude-code/cli-wrapper.cjs" --dangerously-skip-permissions -p "$@"
}

plain() {
  ANTHROPIC_CUSTOM_HEADERS="$named" run "$PLAIN"
}

code() {
  run "$CODE" && cat greeting.txt
}

play plain plain
play code code
play delegate run "$DELEGATE"
played
