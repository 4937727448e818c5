"""Comparison of a module's programs with what PyTorch itself computes.

`torch.export` leaves out what acts on gradients alone, and keeps what Python decides once.
"""

import copy
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fedax.core import InvalidInput
from fedax.models.torch_modules.program import as_tensor, float_type
from fedax.models.torch_modules.recurrent import Draw

Run = Callable[[PyTree, PyTree, Sequence[Any], Draw | None], tuple[PyTree, PyTree]]
"""Outputs and new state, of parameters, state, inputs and a source of random numbers."""
Values = dict[str, dict[Any, np.ndarray]]
"""Arrays by their kind (output, buffer or gradient) and their number or name."""
_SMALL = 0.01
"""Part of the largest array of its kind below which an array is measured by that one: where terms
cancel out, rounding is all that is left."""
_HINT = (
    "torch.export leaves out what acts on gradients alone (detach, no_grad, hooks, "
    "autograd.Function) and keeps what Python decides once. Freeze parameters by "
    "requires_grad_(False) before, and write the rest with operators."
)


def refuse_unequal(
    module: Any, run: Run, params: PyTree, state: PyTree, inputs: Sequence[np.ndarray]
) -> None:
    """Compares outputs, new buffers and gradients with PyTorch's, in training and evaluation.

    Args:
        module: it is not changed.
        run: its programs in JAX.
        params: by name.
        state: buffers that training changes, by name.
        inputs: the module's arguments for some examples.

    Raises:
        InvalidInput: names an array that differs.
    """
    import torch  # pyright: ignore[reportMissingImports]

    # rounding grows through the layers: by a factor of 100 in ResNet-18
    tolerance = 10 * torch.finfo(float_type(module)).eps ** 0.5
    for mode in ("training", "evaluation"):
        reference = copy.deepcopy(module).train(mode == "training")
        for name, parameter in module.named_parameters():  # `deepcopy` leaves their hooks out
            reference.get_parameter(name)._backward_hooks = parameter._backward_hooks
        draw = (lambda rate, shape: rate) if mode == "training" else None
        computed = _run_in_jax(module, run, params, state, inputs, draw)
        # what a forward counts differs in the second call
        for _ in range(2):
            expected = _run_in_torch(reference, state, inputs)
            for kind, arrays in computed.items():
                largest = max(map(_size, expected[kind].values()), default=0)
                for name, array in arrays.items():
                    # PyTorch has no gradient where none arrives
                    other = expected[kind].get(name, np.zeros_like(array))
                    bound = tolerance * (_size(other) + _SMALL * largest)
                    if not np.allclose(array, other, 0, bound, equal_nan=True):
                        difference = np.max(np.abs(array - other))
                        reason = (
                            f"in {mode}, the {kind} {name!r} differs from PyTorch's by "
                            f"{difference:.2g}"
                        )
                        raise InvalidInput.because("models.torch(module=...)", reason, _HINT)


def _run_in_jax(
    module: Any,
    run: Run,
    params: PyTree,
    state: PyTree,
    inputs: Sequence[np.ndarray],
    draw: Draw | None,
) -> Values:
    trained = {name: params[name] for name, p in module.named_parameters() if p.requires_grad}

    def loss(trained: PyTree) -> tuple[Any, tuple[list[Array], Any]]:
        outputs, new_state = run(params | trained, state, inputs, draw)
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
        weighted = [
            (leaf * weight.astype(leaf.dtype)).sum()
            for leaf, weight in _weigh(leaves)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        return sum(weighted, 0.0), (leaves, new_state)

    program = jax.jit(jax.grad(loss, has_aux=True)).lower(trained)
    # it runs once: compiling it takes most of the time
    options: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
    gradients, (leaves, new_state) = program.compile(options)(trained)
    found = {"output": dict(enumerate(leaves)), "buffer": new_state or {}, "gradient": gradients}
    return jax.tree.map(np.asarray, found)


def _run_in_torch(module: Any, state: PyTree, inputs: Sequence[np.ndarray]) -> Values:
    import torch  # pyright: ignore[reportMissingImports]
    from torch.utils._python_dispatch import (  # pyright: ignore[reportMissingImports]
        TorchDispatchMode,
    )

    class MeanDraws(TorchDispatchMode):
        """Dropout that multiplies by the mean of its draws, so that nothing is random."""

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is torch.ops.aten.bernoulli_.float:
                return args[0].fill_(*(args[1:] or (0.5,)))
            return function(*args, **(kwargs or {}))

    buffers = dict(module.named_buffers(remove_duplicate=False))
    for name, array in (state or {}).items():
        buffers[name].copy_(torch.from_numpy(np.array(array)))
    module.zero_grad()
    drawn = _read_generators()
    with torch.enable_grad(), MeanDraws():
        outputs = module(*(as_tensor(module, array) for array in inputs))
    if _read_generators() != drawn:
        reason = "forward draws random numbers of Python or NumPy, which a program would keep"
        raise InvalidInput.because("models.torch(module=...)", reason, "Draw them by nn.Dropout.")
    leaves = [torch.as_tensor(leaf) for leaf in jax.tree.leaves(outputs)]
    loss = torch.zeros((), requires_grad=True)
    for leaf, weight in _weigh(leaves):
        if leaf.is_floating_point():
            loss = loss + (leaf * torch.from_numpy(weight).to(leaf)).sum()
    loss.backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    found = {
        "output": dict(enumerate(leaves)),
        "buffer": {name: buffers[name] for name in state or ()},
        "gradient": gradients,
    }
    # buffers are written again in the next call
    return jax.tree.map(lambda tensor: tensor.detach().numpy().copy(), found)


def _read_generators() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002


def _weigh(leaves: Sequence[Any]) -> list[tuple[Any, np.ndarray]]:
    """Returns outputs with their weights in the loss, the same in each call."""
    rng = np.random.default_rng(0)
    return [(leaf, rng.normal(size=tuple(leaf.shape))) for leaf in leaves]


def _size(array: np.ndarray) -> float:
    return float(np.max(np.abs(array), initial=0, where=np.isfinite(array)))
