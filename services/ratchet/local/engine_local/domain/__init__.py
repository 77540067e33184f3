"""The engine's rules without torch, tokenizers or sockets."""
