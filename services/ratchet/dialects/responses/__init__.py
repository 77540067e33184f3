"""OpenAI's Responses API: requests as chat completion requests, and chat completions as responses.

Policies' engines serve chat. Here a request becomes a chat request (`to_chat`), its answer a response (`from_chat`) or
the events of one (`ResponseStream`). An upstream that serves the API itself gets the request as it is; `read` and
`to_chat_answer` then give what the turn records. `state` is what a later request may continue.
"""
