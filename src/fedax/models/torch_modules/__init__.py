"""PyTorch modules as models: exported by PyTorch, run by JAX."""
