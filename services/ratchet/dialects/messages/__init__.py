"""Anthropic's Messages API over chat completions, pure: requests, answers, streams, errors and token counts.

An agent of this API is captured as a chat agent is: `read` gives its request as a chat completion, which turns record,
and which engines without the API get (`to_chat`). Their answers become messages (`from_chat`, `MessageStream`), and the
messages of engines that have the API become chat answers for the turn (`message_of`, `MessageFold`).

What chat completions cannot say is dropped, or refused where that would change what the agent asked for:

| in a request | in the chat completion |
|---|---|
| `system`, text of the first `system` messages | one system message, texts joined by a blank line |
| consecutive messages of one role | one message, as Anthropic defines it |
| `tool_result` | a `tool` message, `Error: ` before a failure's text; its images follow in the user's message |
| `thinking` of an earlier answer | `reasoning_content` of its message; redacted thinking is dropped |
| text and PDF documents, search results | text and file parts; those by URL or file id are refused |
| tools with `defer_loading` | left out until a `tool_reference` or a `tool_addition` names them |
| `tool_choice` `any`, `tool` | `required`, the named function |
| `disable_parallel_tool_use` | `parallel_tool_calls: false` |
| `output_config.format` | `response_format` |
| `thinking.budget_tokens` | `reasoning_effort`: low below 4,096, medium below 16,384, else high |
| `output_config.effort` | recorded, not sent: clients set it for every model, and those that do not reason refuse it |
| tools that Anthropic runs or defines, `mcp_servers`, `container`, an answer that the agent begins | refused |
| `cache_control`, `context_management`, `service_tier`, `speed`, ... | dropped: they change cost or pace |
"""
