"""Comparison of a module's programs with what PyTorch itself computes."""

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
from fedax.tasks.own_models.torch_modules.layers import Context
from fedax.tasks.own_models.torch_modules.program import as_tensor

Run = Callable[[PyTree, PyTree, Sequence[Array], Context], tuple[PyTree, Any]]
"""Outputs and new state, of parameters, state, inputs and the context of a call."""
Values = dict[tuple[str, Any], np.ndarray]
"""Arrays by their kind (output, buffer or gradient) and their number or name."""
_FEWER = 5
"""Examples of the second, smaller batch."""
_SMALL = 0.01
"""Part of the largest array of its kind below which an array is measured by that one: where terms
cancel out, rounding is all that is left."""
_HINT = (
    "torch.export leaves out what acts on gradients alone (detach, no_grad, hooks, "
    "autograd.Function) and keeps what Python decides once. Freeze parameters by "
    "requires_grad_(False) before, or by frozen=..., and write the rest with operators."
)


def refuse_unequal(
    module: Any, run: Run, params: PyTree, state: PyTree, inputs: Sequence[np.ndarray]
) -> None:
    """Compares outputs, new buffers and gradients with PyTorch's own, in training and evaluation.

    PyTorch runs the same examples twice, in batches of two sizes. Dropout multiplies by the mean
    of its draws in both libraries, so that nothing is random.

    Args:
        module: a `torch.nn.Module`, which is not changed.
        run: its programs in JAX.
        params: by name.
        state: buffers that training changes, by name, or None.
        inputs: the module's arguments for some examples.

    Raises:
        InvalidInput: names the array that differs most.
    """
    trained = {name: params[name] for name, p in module.named_parameters() if p.requires_grad}
    for training in (True, False):
        # the copy keeps what its forward counts from one call to the next
        reference = _copy_with_hooks(module).train(training)
        context = Context(_take_mean if training else None)
        mode = "training" if training else "evaluation"
        # gradients in one size: a program that is right in the other has them too
        for batch, leaves in ((inputs, trained), ([array[:_FEWER] for array in inputs], {})):
            computed = _run_in_jax(run, params, leaves, state, batch, context)
            for _ in range(2):
                expected = _run_in_torch(reference, state, batch, backward=bool(leaves))
                _refuse_different(expected, computed, mode)


def _copy_with_hooks(module: Any) -> Any:
    """Returns a copy with the hooks of parameters, which `deepcopy` leaves out."""
    copied = copy.deepcopy(module)
    for name, parameter in module.named_parameters():
        copied.get_parameter(name)._backward_hooks = parameter._backward_hooks
    return copied


def _take_mean(probability: float, shape: Sequence[int]) -> float:
    return probability


def _run_in_jax(
    run: Run,
    params: PyTree,
    trained: PyTree,
    state: PyTree,
    inputs: Sequence[np.ndarray],
    context: Context,
) -> Values:
    """Returns outputs and buffers, and the gradients of the parameters that are `trained`."""

    def loss(trained: PyTree) -> tuple[Any, tuple[list[Array], Any]]:
        arguments = tuple(map(jnp.asarray, inputs))
        outputs, new_state = run(params | trained, state, arguments, context)
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
        real = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
        weighted = [(leaf * weight.astype(leaf.dtype)).sum() for leaf, weight in _weigh(real)]
        return sum(weighted, jnp.zeros(())), (leaves, new_state)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        program = jax.jit(jax.grad(loss, has_aux=True)).lower(trained)
        # it runs once: compiling it takes most of the time
        options: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
        gradients, (leaves, new_state) = program.compile(options)(trained)
    values = {("output", k): np.asarray(leaf) for k, leaf in enumerate(leaves)}
    values |= {("buffer", name): np.asarray(array) for name, array in (new_state or {}).items()}
    return values | {("gradient", name): np.asarray(array) for name, array in gradients.items()}


def _run_in_torch(
    module: Any, state: PyTree, inputs: Sequence[np.ndarray], *, backward: bool
) -> Values:
    import torch

    class MeanDraws(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is torch.ops.aten.bernoulli_.float:
                return args[0].fill_(*(args[1:] or (0.5,)))
            return function(*args, **(kwargs or {}))

    buffers = dict(module.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, array in (state or {}).items():
            buffers[name].copy_(torch.from_numpy(np.array(array)))
    module.zero_grad()
    drawn = _read_generators()
    with torch.enable_grad(), MeanDraws():
        outputs = module(*(as_tensor(module, array) for array in inputs))
    if _read_generators() != drawn:
        reason = "forward draws random numbers of Python or NumPy, which a program would keep"
        raise InvalidInput.because("from_torch(module=...)", reason, "Draw them by nn.Dropout.")
    leaves = [torch.as_tensor(leaf) for leaf in jax.tree.leaves(outputs)]
    real = [leaf for leaf in leaves if leaf.is_floating_point()]
    loss = torch.zeros(())
    for leaf, weight in _weigh(real):
        loss = loss + (leaf * torch.from_numpy(weight).to(leaf)).sum()
    if backward and loss.requires_grad:
        loss.backward()
    values = {("output", k): leaf.detach().numpy() for k, leaf in enumerate(leaves)}
    # these are written again in the next call
    values |= {("buffer", name): buffers[name].numpy().copy() for name in state or {}}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            values["gradient", name] = parameter.grad.numpy()
    return values


def _read_generators() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002


def _weigh(leaves: Sequence[Any]) -> list[tuple[Any, np.ndarray]]:
    """Returns outputs with their weights in the loss, the same in each call."""
    rng = np.random.default_rng(0)
    return [(leaf, rng.normal(size=tuple(leaf.shape))) for leaf in leaves]


def _refuse_different(expected: Values, computed: Values, mode: str) -> None:
    differences = {key: _difference(expected, computed, key) for key in computed}
    precision = max(np.finfo(a.dtype).eps for a in computed.values() if a.dtype.kind == "f")
    kind, name = max(differences, key=lambda key: differences[key])
    difference = differences[kind, name]
    # rounding grows through the layers: by a factor of 100 in ResNet-18
    if difference > 10 * precision**0.5:
        reason = (
            f"in {mode}, the {kind} {name!r} differs from PyTorch's by {difference:.2g} times "
            "its size"
        )
        raise InvalidInput.because("from_torch(module=...)", reason, _HINT)


def _difference(expected: Values, computed: Values, key: tuple[str, Any]) -> float:
    """Returns the length of the difference of two arrays, relative to that of PyTorch's."""
    other = computed[key].astype(float)
    # PyTorch has no gradient where none arrives
    one = expected.get(key, np.zeros_like(other)).astype(float)
    if one.shape != other.shape:
        return np.inf
    sizes = [_size(array) for (kind, _), array in expected.items() if kind == key[0]]
    scale = _size(one) + _SMALL * max(sizes, default=0) + np.finfo(np.float32).tiny
    is_equal = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        difference = np.where(is_equal, 0, one - other)
    return float(np.nan_to_num(np.linalg.norm(difference) / scale, nan=np.inf))


def _size(array: np.ndarray) -> float:
    return float(np.linalg.norm(np.where(np.isfinite(array), array, 0).astype(float)))
