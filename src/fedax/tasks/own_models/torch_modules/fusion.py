"""Steps of an exported graph, and those that fedax's operations take together."""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedax.tasks.own_models.torch_modules import layers


@dataclasses.dataclass(frozen=True)
class Ref:
    """The result of a step, or an input."""

    name: str


@dataclasses.dataclass(frozen=True)
class Step:
    """One call.

    Attributes:
        name: of the result.
        function: in JAX, of the arguments.
        args: with `Ref` for results of other steps.
        kwargs: by name.
        takes_context: whether the function also takes the call's `Context`.
        operator: PyTorch's name without "aten.", or "fused".
        shape: of the result, sizes or symbols as text; None of several results.
    """

    name: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    takes_context: bool = False
    operator: str = "fused"
    shape: tuple[str, ...] | None = None


def fuse(steps: Sequence[Step], inputs: Iterable[str], results: Sequence[Any]) -> list[Step]:
    """Returns steps of which some do the work of several, as fedax's operations do.

    - a convolution, ReLU and maximum pooling, in either order of the last two or without pooling
    - group norm, the sum with a shortcut, and ReLU, also without the sum
    - an LSTM from zeros whose last cells nothing reads

    Images among the inputs are laid out in memory once.
    """
    graph = _Graph(steps, results)
    replacements: dict[str, list[Step]] = {}
    absorbed: set[str] = set()
    for step in reversed(steps):  # the last step of a pattern stands for it
        if step.name in absorbed:
            continue
        match = (
            _match_activated_convolution(graph, step)
            or _match_normed_sum(graph, step)
            or ([_simplify_lstm(graph, step)], ())
        )
        replacements[step.name] = match[0]
        absorbed |= set(match[1])
    # in the order of the graph, with what stands for each step
    fused_steps = [
        step
        for original in steps
        if original.name in replacements
        for step in replacements[original.name]
    ]
    return _with_layouts(_with_twins(fused_steps), set(inputs))


class _Graph:
    def __init__(self, steps: Sequence[Step], results: Sequence[Any]) -> None:
        self.steps = {step.name: step for step in steps}
        self.users: dict[str, list[Step]] = {}
        for step in steps:
            for name in _read_names([step.args, step.kwargs]):
                self.users.setdefault(name, []).append(step)
        self.results = set(_read_names(results))

    def is_read(self, name: str) -> bool:
        return name in self.users or name in self.results

    def find_only(self, ref: Any, *operators: str) -> Step | None:
        """Returns the step that makes a value if it is of one of the operators and one other step
        alone reads it.
        """
        step = self.steps.get(ref.name) if isinstance(ref, Ref) else None
        if step is None or step.operator not in operators:
            return None
        return step if len(self.users[step.name]) == 1 and step.name not in self.results else None


def _read_names(value: Any) -> list[str]:
    """Returns the names of all values among arguments."""
    if isinstance(value, Ref):
        return [value.name]
    items = (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, list | tuple)
        else ()
    )
    return [name for item in items for name in _read_names(item)]


Match = tuple[list[Step], Sequence[str]] | None
"""Steps instead of the last one of a pattern, and the names of the others, which go."""


def _match_activated_convolution(graph: _Graph, last: Step) -> Match:
    # the steps behind a convolution, at most one ReLU and one pooling
    followers: dict[str, Step] = {}
    step: Step | None = last
    # backwards, as long as no other step reads what is in between
    while (
        step is not None
        and step.operator in ("relu.default", "max_pool2d.default")
        and step.operator not in followers
    ):
        followers[step.operator] = step
        step = graph.find_only(
            step.args[0], "relu.default", "max_pool2d.default", "convolution.default"
        )
    if step is None or step.operator != "convolution.default" or "relu.default" not in followers:
        return None
    x, weight, bias, stride, padding, dilation, transposed, _, groups = step.args
    window: tuple[int, int] = (1, 1)
    if pool := followers.get("max_pool2d.default"):
        settings = layers.pool_settings(*pool.args[1:], **pool.kwargs)
        if not layers.windows_fit(*settings):
            return None
        window = layers.pair(settings[0])
    if not layers.convolution_fits(len(stride) + 2, dilation, transposed, groups):
        return None
    args = (x, weight, bias, stride, padding, window)
    absorbed = [
        step.name,
        *(follower.name for follower in followers.values() if follower is not last),
    ]
    return [Step(last.name, layers.activated_convolution, args, shape=last.shape)], absorbed


def _match_normed_sum(graph: _Graph, last: Step) -> Match:
    if last.operator != "relu.default":
        return None
    norm, shortcut, absorbed = graph.find_only(last.args[0], "group_norm.default"), None, []
    total = graph.find_only(last.args[0], "add.Tensor")
    if total is not None and len(total.args) == 2 and not total.kwargs:
        # either side of the sum may be the norm
        candidates = [
            (graph.find_only(total.args[k], "group_norm.default"), total.args[1 - k])
            for k in (0, 1)
        ]
        norm, shortcut = next(
            (candidate for candidate in candidates if candidate[0] is not None), (None, None)
        )
        # a shortcut that broadcasts is no case of fedax's operation
        shortcut_step = graph.steps.get(shortcut.name) if isinstance(shortcut, Ref) else None
        if norm is None or shortcut_step is None or shortcut_step.shape != norm.shape:
            return None
        absorbed.append(total.name)
    if norm is None or norm.shape is None:
        return None
    # arguments behind `groups` that the graph leaves out
    defaults: tuple[Any, ...] = (None, None, 1e-5, True)
    x, groups, weight, bias, eps, _ = (*norm.args, *defaults[len(norm.args) - 2 :])
    if norm.kwargs or not layers.group_norm_fits(len(norm.shape), eps):
        return None
    # one operation with two results, which the last step and its twin take
    pair_name = f"{last.name} twice"
    steps = [
        Step(pair_name, layers.normed_sum, (x, groups, weight, bias, shortcut)),
        Step(last.name, operator.getitem, (Ref(pair_name), 0), shape=last.shape),
        Step(_twin_name(last.name), operator.getitem, (Ref(pair_name), 1), shape=last.shape),
    ]
    return steps, [*absorbed, norm.name]


def _twin_name(name: str) -> str:
    """Returns the name of a sum's second copy, which the next shortcut takes."""
    return f"{name} again"


def _with_twins(steps: list[Step]) -> list[Step]:
    """Lets shortcuts take the second copies: the sum of their gradients then needs no pass over
    memory.
    """
    names = {step.name for step in steps}

    def use_twin(step: Step) -> Step:
        if step.function is not layers.normed_sum or not isinstance(step.args[4], Ref):
            return step
        twin = _twin_name(step.args[4].name)
        return (
            dataclasses.replace(step, args=(*step.args[:4], Ref(twin))) if twin in names else step
        )

    return list(map(use_twin, steps))


def _with_layouts(steps: list[Step], inputs: set[str]) -> list[Step]:
    """Lays out the images among the inputs before their first convolution."""
    images = {
        step.args[0].name
        for step in steps
        if step.function is layers.activated_convolution or step.operator == "convolution.default"
        if isinstance(step.args[0], Ref) and step.args[0].name in inputs
    }
    if not images:
        return steps
    names = {name: f"{name} laid" for name in images}

    def use_layout(step: Step) -> Step:
        first = step.args[0] if step.args else None
        convolves = (
            step.function is layers.activated_convolution or step.operator == "convolution.default"
        )
        if not convolves or not isinstance(first, Ref) or first.name not in names:
            return step
        return dataclasses.replace(step, args=(Ref(names[first.name]), *step.args[1:]))

    return [
        *(Step(new, layers.lay_out, (Ref(name),)) for name, new in names.items()),
        *map(use_layout, steps),
    ]


def _simplify_lstm(graph: _Graph, step: Step) -> Step:
    """Returns the step, with a start of None if it is zeros and nothing reads the last cells."""
    if step.operator != "lstm.input":
        return step
    # hidden states and cells before the first step
    starts = [graph.steps.get(ref.name) for ref in step.args[1]]
    zeros = all(
        start is not None and start.operator == "full.default" and start.args[1] == 0
        for start in starts
    )
    # result 2 is the last cells
    reads_cells = any(
        user.args[1] == 2 and graph.is_read(user.name) for user in graph.users.get(step.name, [])
    )
    return (
        dataclasses.replace(step, args=(step.args[0], [None, None], *step.args[2:]))
        if zeros and not reads_cells
        else step
    )
