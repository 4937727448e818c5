"""Running: the loop, sessions, the round engine, and the transports below it."""
