"""The standing benchmark: every method under equal tuning on the same tasks, with its archive.

`docs/benchmark/protocol.md` says what is done and why.
"""
