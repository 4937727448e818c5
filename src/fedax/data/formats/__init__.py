"""File formats of federated data."""
