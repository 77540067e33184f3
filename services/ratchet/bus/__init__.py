"""A NATS JetStream library: messages with contracts, published and consumed exactly once in effect."""
