"""Between rounds: the run loop, sessions, options, checkpoints, early stopping."""
