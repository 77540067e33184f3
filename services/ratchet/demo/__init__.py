"""The demo: a help desk whose policy Ratchet improves, guards and takes back, live on one machine."""
