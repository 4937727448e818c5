"""Modules of PyTorch as JAX functions: exported by PyTorch, interpreted here."""
