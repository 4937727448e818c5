"""Time on the virtual clock: seconds of rounds, and the server steps of asynchronous servers."""
