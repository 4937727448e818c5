"""A method that draws the same things, by the same names, in `init` and in every round."""

import equinox as eqx
import jax
import numpy as np

import fedax
from fedax.core import Upload


class State(eqx.Module):
    """The model, the clients' counts of calls, and what was drawn in `init`."""

    w: jax.Array
    clients: fedax.core.ClientStates
    drawn: dict


class Draws(fedax.core.Algorithm):
    """The server's key, the cohort, and the clients' keys, batches and numbers of steps."""

    def init(self, fed, w):
        drawn, memory = self.draw(fed, w, fed.client_states(jax.numpy.zeros(())))
        return State(w, memory, drawn)

    def round(self, fed, state):
        drawn, memory = self.draw(fed, state.w, state.clients)
        fed.log(**{f"{name} of init": value for name, value in state.drawn.items()}, **drawn)
        return State(state.w, memory, state.drawn)

    def draw(self, fed, w, memory):
        server = jax.random.normal(fed.key("noise"), (3,))
        cohort = fed.sample()
        sent, memory = fed.gather(self.work, cohort, w, states=memory)
        noise, model, calls = sent.value
        return {
            "server": server,
            "ids": sent.ids,
            "noise": noise,
            "model": model,
            "calls": calls,
        }, memory

    def work(self, client, w, calls):
        drawn = jax.random.normal(client.key("noise")), client.minimize(start=w), calls
        return Upload(drawn, state=calls + 1)


def check_init_draws_apart(history):
    """Asserts that what `init` drew is drawn in no round, and that its memories are kept."""
    notes = history.logged
    for name in ("server", "noise", "model"):
        first = notes[f"{name} of init"]
        assert (first == first[:1]).all()  # drawn once
        assert not np.isin(np.round(notes[name], 12), np.round(first[0], 12)).any(), name
    called = set(notes["ids of init"][0].tolist())
    for k, calls in zip(notes["ids"][0].tolist(), notes["calls"][0], strict=True):
        assert calls == (k in called)
