"""A large frozen base: it is there once, whatever it comes as, and never sent."""

import jax
import numpy as np

import fedax

CLIENTS = [{"x": np.ones((2, 3)), "y": np.full(2, float(k))} for k in range(3)]


def loss(p, e):
    return ((e["x"] * p["base"][None, :]) @ p["w"] - e["y"]) ** 2


def test_a_base_of_numpy_is_a_copy():
    """Also where its memory is as JAX would have it: what becomes of the caller's array later is
    not seen."""
    room = np.zeros(16, np.float64)
    begin = -room.ctypes.data % 64 // 8
    base = room[begin : begin + 3]
    base[:] = [1, 2, 3]
    task = fedax.Task({"base": base, "w": np.zeros(3)}, loss, CLIENTS, frozen="base")
    base[:] = 7
    assert task.frozen["base"].tolist() == [1, 2, 3]


def test_a_base_that_a_function_makes_is_made_once():
    made = []

    def start(key):
        def base(drawn):
            made.append(1)
            return drawn

        drawn = jax.random.normal(key, 3)
        return {"base": jax.pure_callback(base, drawn, drawn), "w": drawn}

    task = fedax.Task(start, loss, CLIENTS, frozen="base")
    found = fedax.run(fedax.FedAvg(), task, rounds=0, seed=1)
    np.testing.assert_allclose(
        found.params["w"], jax.random.normal(jax.random.fold_in(jax.random.key(1), 0), 3)
    )
    assert len(made) == 1
