import jax
import jax.numpy as jnp
import pytest

from commands import succeed
from fedax import layers
from fedax.ops import extension
from fedax.ops.extension import Status, status
from fedax.results.versions import versions


def test_doctor_says_what_is_there():
    text = succeed("doctor").output
    assert jax.__version__ in text
    assert "2 x cpu (cpu)" in text
    assert ("native layers: in use" in text) == status().used


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("the environment variable FEDAX_NATIVE is 0", "Unset FEDAX_NATIVE"),
        (
            "this installation has no extension, as there was no C++ compiler",
            "Install g++ or clang",
        ),
    ],
)
def test_doctor_says_what_is_missing_and_what_it_costs(monkeypatch, reason, remedy):
    monkeypatch.setattr("fedax.ops.extension.status", lambda: Status(False, "", reason))
    lines = succeed("doctor").output.splitlines()
    line = next(line for line in lines if line.startswith("native layers:"))
    assert f"not in use: {reason}" in line
    assert "as long" in line
    assert remedy in line


def test_a_process_without_native_layers_says_once_what_is_slower(monkeypatch, caplog):
    monkeypatch.setattr(extension, "status", lambda: Status(False, "", "no compiler"))
    extension._warn_once.cache_clear()
    x = jnp.ones((1, 4, 4, 2))
    kernel = jnp.ones((3, 3, 2, 5))
    for _ in range(2):
        layers.conv2d(x, kernel)
    assert caplog.messages == [extension.slower()]
    assert "of LeNet 5" in versions()["layers"]
    monkeypatch.undo()
    assert ("layers" in versions()) != status().used
