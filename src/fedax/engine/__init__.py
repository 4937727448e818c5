"""Running: the loop, sessions, the round engine, and the backends below it."""
