"""Tasks of the user's own loss or of models of other libraries."""
