"""Text as characters and tokens."""
