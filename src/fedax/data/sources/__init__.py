"""Data sets, one per file; each is a function that returns `fedax.data.FederatedData`."""
