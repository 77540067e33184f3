"""What the HTTP interfaces take and answer: the mirror of `contracts/http`, for services and their clients."""
