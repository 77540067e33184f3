# What the scripts of command-line agents share: the tasks, and the report on standard output.

PLAIN="task-plain: where are my orders?"
CODE="task-code: write a greeting to a file, then make it longer."
DELEGATE="task-delegate: have another agent count the files, then say where my orders are."
COMPACT="task-compact: count the files, then say where my orders are."
REPORT=

# play TASK COMMAND...: what the command prints is the answer; a command that fails has failed the task.
play() {
  task=$1
  shift
  if text=$("$@" </dev/null); then kind=answer; else kind=failed; fi
  text=$(printf %s "$text" | node -p 'JSON.stringify(require("fs").readFileSync(0, "utf8"))')
  REPORT="$REPORT${REPORT:+, }\"$task\": {\"$kind\": $text}"
}

# played: the report of all tasks.
played() {
  printf '\nPLAYED {%s}\n' "$REPORT"
}
