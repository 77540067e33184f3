"""Chat and trajectory: one mapping between OpenAI messages and the turns of a trajectory, in both directions.

An assistant message becomes one entry (`TrajectoryTurn`) per tool call, or one entry when it calls none. Entries of one
message share `turn_ref`, the id of their model call. The observation of the first entry is what came before the
message; a tool's result is the `result.output` of the entry that called it.

`chat_messages` gives back the chat that `trajectory_turns` read, but for these differences, none of which is text
that a policy could learn from:

- messages after the last assistant message are dropped (nothing follows from them), except results of its own calls;
- tool call ids are renamed to `call_<turn_id>`, consistently in calls and results;
- a tool result always carries the tool's name, and null content of a result reads as "";
- members that are null or an empty list are dropped (`refusal: null`), but `content: null` of the assistant stays;
- the legacy `function_call` and role `function` read as a tool call and its result;
- arguments given as an object instead of text read as compact JSON.

Members that the fields of an entry cannot express are kept beside them: an assistant message as JSON in
`action.raw_response` (arguments that are not compact JSON, content parts, further members), and unusual messages before
it as `{"messages": [...]}` in `observation.content` (several at once, results out of order, developer messages).

Agents and models write what they like. Text that looks like one of these two but cannot be read as such (broken, nested
more than `MAX_DEPTH` levels deep, members of other types) stays text; everything else that breaks the format is a
`ChatError`.
"""

from ratchet.core.rules.chat.conversations import (
    Conversation,
    Earlier,
    assembled_turns,
    beginnings,
    chain_of_turns,
    chat_of_turns,
    conversation_of,
    conversations,
    entries_of,
    failed_entries,
    prompt_of_turn,
    readable,
    split,
)
from ratchet.core.rules.chat.format import MAX_DEPTH, ChatError, last_answer, text_of
from ratchet.core.rules.chat.links import tools_called
from ratchet.core.rules.chat.to_entries import Call, trajectory_turns
from ratchet.core.rules.chat.to_messages import chat_messages, messages_with_calls

__all__ = [
    "MAX_DEPTH",
    "Call",
    "ChatError",
    "Conversation",
    "Earlier",
    "assembled_turns",
    "beginnings",
    "chain_of_turns",
    "chat_messages",
    "chat_of_turns",
    "conversation_of",
    "conversations",
    "entries_of",
    "failed_entries",
    "last_answer",
    "messages_with_calls",
    "prompt_of_turn",
    "readable",
    "split",
    "text_of",
    "tools_called",
    "trajectory_turns",
]
