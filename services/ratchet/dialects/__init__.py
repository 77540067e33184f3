"""The API dialects that agents speak, as pure code: Chat Completions, Responses, Messages."""
