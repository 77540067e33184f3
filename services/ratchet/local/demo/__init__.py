"""`ratchet demo`: drives the help desk of examples/helpdesk through the whole loop, live on one machine."""
