"""Methods with a server that learn one global model."""
