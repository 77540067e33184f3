"""Mining: episodes as columns, hypotheses about them, and tests whose false discoveries are bounded. Pure."""
