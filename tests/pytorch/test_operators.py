"""Exported operators compute what PyTorch computes, with its gradients, in compiled programs."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from networks import lstm, mnist_cnn, resnet20  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from fedax.models.torch_modules import layers, program, recurrent  # noqa: E402
from fedax.models.torch_modules.operators import OPERATORS  # noqa: E402
from fedax.models.torch_modules.program import export  # noqa: E402


class Call(nn.Module):
    """A function as a module, with a weight that its input passes through."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.tensor(1.3))

    def forward(self, x):
        return self.function(x * self.weight)


def check(module, x, *, training=False):
    """Compares outputs and the gradients of parameters and input with PyTorch's; exported for 2
    examples, called for 3."""
    module = module.double()
    exported = export(module, [x[:2].numpy()], training=training)
    tensors = {name: np.asarray(tensor.detach()) for name, tensor in module.state_dict().items()}
    leaf = x.clone().requires_grad_(x.is_floating_point())
    outputs = module.train(training)(leaf)
    outputs = [*outputs] if isinstance(outputs, tuple | list) else [outputs]
    weights = [
        torch.linspace(-1, 1, max(out.numel(), 1), dtype=torch.float64).reshape(out.shape)
        for out in outputs
    ]

    def total(tensors, x):
        found = jax.tree.leaves(exported(tensors, [x])[0])
        return sum(
            (out * np.asarray(weight)).sum() for out, weight in zip(found, weights, strict=True)
        ), found

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        by = (0, 1) if x.is_floating_point() else (0,)
        gradient = jax.jit(jax.grad(total, by, has_aux=True, allow_int=True))
        gradients, found = gradient(tensors, x.numpy())
    for ours, theirs in zip(found, outputs, strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-9, atol=1e-9)
    sum((out * weight).sum() for out, weight in zip(outputs, weights, strict=True)).backward()
    for name, parameter in module.named_parameters():
        theirs = 0 if parameter.grad is None else parameter.grad
        np.testing.assert_allclose(gradients[0][name], theirs, rtol=1e-8, atol=1e-8, err_msg=name)
    if x.is_floating_point():
        np.testing.assert_allclose(
            gradients[1], 0 if leaf.grad is None else leaf.grad, rtol=1e-8, atol=1e-8
        )


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


F = functional
ONE = {
    "activations": lambda x: (
        F.elu(x),
        F.leaky_relu(x),
        F.gelu(x),
        F.gelu(x, approximate="tanh"),
        F.silu(x),
        F.mish(x),
    ),
    "more_activations": lambda x: (
        F.softplus(x),
        F.hardtanh(x),
        F.relu6(x),
        F.logsigmoid(x),
        F.hardswish(x),
        F.selu(x),
    ),
    "elementary": lambda x: (
        x.abs().sqrt(),
        x.exp(),
        x.sin(),
        x.tanh(),
        x.erf(),
        (x * x).log1p(),
        x.abs().rsqrt(),
        x**3,
    ),
    "with_numbers": lambda x: (
        x + 2,
        2 - x,
        x * 3,
        x / 4,
        1 / x,
        x.clamp(-0.5, 0.5),
        x.clamp(min=0.1),
        x.pow(2),
    ),
    "compared": lambda x: (
        torch.where(x > 0, x, 2 * x) + (x <= 0.5).double() + torch.maximum(x, x.flip(1))
    ),
    "masked": lambda x: x.masked_fill(x > 0.3, -1.0),
    "softmaxes": lambda x: (x.softmax(-1), x.log_softmax(1), x.logsumexp(2)),
    "reductions": lambda x: (
        x.sum(),
        x.mean((1, 2)),
        x.amax(1),
        x.var(2),
        x.std(1, unbiased=False),
        x.prod(2),
        x.norm(dim=1),
    ),
    "extremes": lambda x: (x.max(2)[0], x.min(1)[0], x.argmax(2).double(), x.max()),
    "ordered": lambda x: (x.sort(2, descending=True)[0], x.topk(2, 1)[0], x.cumsum(1)),
    "shapes": lambda x: (
        x.flatten(1),
        x.transpose(1, 2),
        x.permute(2, 0, 1),
        x[:, 1:, ::2],
        x[:, -1],
        x.unsqueeze(1),
    ),
    "more_shapes": lambda x: (
        x.repeat(1, 2, 1),
        x.roll(1, 2),
        x.unsqueeze(1).expand(-1, 5, -1, -1),
        x.tril(),
        x.flip(2),
    ),
    "split": lambda x: (*x.split(3, 2), *x.chunk(2, 1), *x.unbind(1)),
    "joined": lambda x: (torch.cat([x, x * 2], 1), torch.stack([x, x], 2)),
    "padded": lambda x: (F.pad(x, (1, 2, 0, 3), value=2.0), F.pad(x, (1, 1), mode="reflect")),
    "einsum": lambda x: (torch.einsum("bij,bkj->bik", x, x), x @ x.transpose(1, 2)),
    "by_size": lambda x: x.view(x.size(0), -1) / x.shape[1] + torch.arange(20).double(),
    "rows": lambda x: (
        x[:, torch.tensor([2, 0, 2])],
        x.gather(2, torch.zeros(x.shape[0], 4, 1, dtype=torch.long)),
    ),
}


@pytest.mark.parametrize("name", ONE)
def test_functions_of_an_array(name):
    check(Call(ONE[name]), normal(3, 4, 5))


IMAGES = {
    "convolution": nn.Conv2d(4, 6, 3, padding=1),
    "stride": nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0)),
    "dilated": nn.Conv2d(4, 6, 3, dilation=2),
    "grouped": nn.Conv2d(4, 8, 3, groups=2),
    "depthwise": nn.Conv2d(4, 4, 3, padding="same", groups=4),
    "transposed": nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
    "transposed_groups": nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2),
    "max_pool": nn.MaxPool2d(2),
    "overlapping": nn.MaxPool2d(3, 2, 1),
    "ceil": nn.MaxPool2d(2, ceil_mode=True),
    "average": nn.AvgPool2d(2),
    "average_padded": nn.AvgPool2d(3, 2, 1),
    "average_uncounted": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "average_ceil": nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    "average_ceil_uncounted": nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "adaptive": nn.AdaptiveAvgPool2d(3),
    "adaptive_one": nn.AdaptiveAvgPool2d(1),
    "group_norm": nn.GroupNorm(2, 4),
    "group_norm_eps": nn.GroupNorm(2, 4, eps=1e-3),
    "instance_norm": nn.InstanceNorm2d(4, affine=True),
    "upsample": nn.Upsample(scale_factor=2),
    "upsample_to": nn.Upsample((10, 15)),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "bilinear_corners": nn.Upsample((10, 5), mode="bilinear", align_corners=True),
    "pixel_shuffle": nn.PixelShuffle(2),
}


@pytest.mark.parametrize("name", IMAGES)
def test_layers_of_images(name):
    check(nn.Sequential(nn.Conv2d(4, 4, 1), IMAGES[name]), normal(3, 4, 7, 7))


ROWS = {
    "linear": (nn.Linear(20, 17), (3, 4, 20)),
    "layer_norm": (nn.LayerNorm((4, 20)), (3, 4, 20)),
    "rms_norm": (nn.RMSNorm(20), (3, 4, 20)),
    "prelu": (nn.PReLU(4), (3, 4, 20)),
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1), (3, 4, 20)),
    "max_pool1d": (nn.Sequential(nn.Linear(20, 20), nn.MaxPool1d(2)), (3, 4, 20)),
    "average1d": (nn.Sequential(nn.Linear(20, 20), nn.AvgPool1d(2)), (3, 4, 20)),
    "group_norm": (nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU()), (3, 4, 20)),
    "attention": (nn.TransformerEncoderLayer(20, 2, 32, 0.0, batch_first=True), (3, 4, 20)),
    "conv3d": (nn.Conv3d(2, 3, 2), (3, 2, 4, 4, 4)),
    "max_pool3d": (nn.Sequential(nn.Conv3d(2, 2, 1), nn.MaxPool3d(2)), (3, 2, 4, 4, 4)),
}


@pytest.mark.parametrize("name", ROWS)
def test_layers_of_rows(name):
    module, shape = ROWS[name]
    check(module, normal(*shape))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_in_both_modes(training):
    check(
        nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), normal(3, 4, 5, 5), training=training
    )
    # without a layer before, PyTorch counts its numbers
    check(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), normal(3, 4), training=training)


def overloads():
    """The operators that a program may have, by the names of their functions."""
    broken_down = {str(overload) for overload in torch.export.default_decompositions()}
    for name, function in program.FUNCTIONS.items():
        packet = getattr(torch.ops.aten, name, None)
        for overload in set(packet.overloads() if packet else ()) - {"out"}:
            known = getattr(packet, overload)
            is_core = torch.Tag.core in known.tags and str(known) not in broken_down
            if is_core or f"{name}.{overload}" in program._KEPT:
                yield name, function, known._schema


def test_functions_take_the_arguments_of_their_operators():
    assert len(program._KEPT) < len(list(overloads()))
    for name, function, schema in overloads():
        arguments = [a.name for a in schema.arguments if not a.kwarg_only]
        arguments += [None] * (name in recurrent.DRAWING)
        options = [a.name for a in schema.arguments if a.kwarg_only]
        options = {option: None for option in options if option not in program._IGNORED}
        try:
            inspect.signature(function).bind(*arguments, **options)
        except TypeError as error:
            pytest.fail(f"{schema}: {error}")


class Recurrent(nn.Module):
    def __init__(self, layer, *, start=False, last=0):
        super().__init__()
        self.layer = layer
        self.start = start
        self.last = last

    def forward(self, x):
        layer = self.layer
        shape = (layer.num_layers * (1 + layer.bidirectional), x.shape[0], layer.hidden_size)
        start = torch.ones(shape, dtype=x.dtype) if self.start else None
        start = (start, start) if self.start and isinstance(layer, nn.LSTM) else start
        outputs, end = layer(x, start)
        end = end if isinstance(end, tuple) else (end,)
        return outputs, *end[: self.last]


RECURRENT = {
    "lstm": (nn.LSTM, {}),
    "lstm_two_ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm_plain": (nn.LSTM, {"bias": False}),
    "gru": (nn.GRU, {"num_layers": 2}),
    "rnn": (nn.RNN, {}),
    "rnn_relu": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
}


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize(("start", "last"), [(False, 0), (False, 2), (True, 1)])
def test_recurrent_layers(name, start, last):
    make, options = RECURRENT[name]
    check(
        Recurrent(make(4, 5, batch_first=True, **options), start=start, last=last), normal(3, 6, 4)
    )


def test_embeddings_and_attention_with_masks():
    check(
        nn.Sequential(nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 3)),
        torch.tensor([[0, 3], [6, 0], [1, 1]]),
    )
    check(nn.Embedding(layers.LARGEST_MARKED + 1, 4), torch.tensor([[0, 3], [6, 1024], [1, 1]]))

    def attend(x):
        mask = torch.ones(4, 4, dtype=torch.bool).tril(1)
        causal = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return causal, functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    check(Call(attend), normal(3, 4, 5))


FAST = {
    "mnist_cnn": (mnist_cnn, {"convolve"}),
    "resnet20": (resnet20, {"convolve", "norm"}),
    "lstm": (lstm, {"recur"}),
}


@pytest.mark.parametrize("name", FAST)
def test_layers_map_onto_the_operations_of_fedax(name):
    make, expected = FAST[name]
    net, x, _ = make()
    exported = export(net, [x[:2].numpy()], training=True)
    tensors = {name: np.asarray(tensor.detach()) for name, tensor in net.state_dict().items()}
    traced = str(jax.make_jaxpr(lambda tensors: exported(tensors, [x.numpy()])[0])(tensors))
    found = {word for word in expected if f"fedax_{word}" in traced}
    assert found == expected, traced
    assert "conv_general_dilated" not in traced


def test_several_arguments_and_structures():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 2)

        def forward(self, x, z):
            return {"sum": self.a(x) + z, "x": x}

    net = Two().double()
    x = normal(3, 3)
    z = normal(3, 2)
    exported = export(net, [x[:2].numpy(), z[:2].numpy()], training=False)
    found, _ = exported(
        {name: np.asarray(t.detach()) for name, t in net.state_dict().items()},
        [x.numpy(), z.numpy()],
    )
    np.testing.assert_allclose(found["sum"], net(x, z)["sum"].detach(), atol=1e-12)
    np.testing.assert_allclose(found["x"], x)


@pytest.mark.parametrize("size", [2, 4, 5])
def test_average_pooling_in_ceil_mode_counts_the_windows_that_it_sums(size):
    check(
        nn.Sequential(nn.Conv2d(4, 4, 1), nn.AvgPool2d(3, 3, 1, ceil_mode=True)),
        normal(3, 4, size, size),
    )


def test_a_norm_of_order_zero_counts():
    x = jnp.asarray([[0.0, 2.0, -1.0], [0.0, 0.0, 3.0]])
    counts = OPERATORS["linalg_vector_norm"](x, 0, [1])
    assert counts.tolist() == torch.linalg.vector_norm(torch.tensor(x.tolist()), 0, 1).tolist()
