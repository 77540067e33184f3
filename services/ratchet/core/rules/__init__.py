"""What several services must agree on: arms of a rollout, chats and turns, redaction, options of a training."""
