"""Tells people of alerts: by chat, mail and webhooks, once, and again when they are over."""
