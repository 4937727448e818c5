"""A method that draws by the same names in `init` and in every round."""

import equinox as eqx
import jax
import numpy as np

import fedax
from fedax.core import Upload


class State(eqx.Module):
    """The model, the counts of calls, and what was drawn in `init`."""

    w: jax.Array
    clients: fedax.core.ClientStates
    drawn: dict


class Draws(fedax.core.Algorithm):
    """The server's key, the cohort, and the clients' keys, batches and numbers of steps."""

    def init(self, fed, w):
        drawn = {"server": jax.random.normal(fed.key("noise"), (3,)), "ids": fed.sample().ids}
        return State(w, fed.client_states(jax.numpy.zeros(())), drawn)

    def round(self, fed, state):
        server = jax.random.normal(fed.key("noise"), (3,))
        sent, memory = fed.gather(self.work, fed.sample(), state.w, states=state.clients)
        noise, model, calls = sent.value
        fed.log(**{f"{name} of init": value for name, value in state.drawn.items()})
        fed.log(server=server, ids=sent.ids, noise=noise, model=model, calls=calls)
        return State(state.w, memory, state.drawn)

    def work(self, client, w, calls):
        drawn = jax.random.normal(client.key("noise")), client.minimize(start=w), calls
        return Upload(drawn, state=calls + 1)


def check_init_draws_apart(history):
    """Asserts that what `init` drew is drawn in no round, and that clients remember."""
    notes = history.logged
    first = notes["server of init"]
    assert (first == first[:1]).all()  # drawn once
    assert not np.isin(np.round(notes["server"], 12), np.round(first[0], 12)).any()
    assert (notes["ids of init"] == notes["ids of init"][:1]).all()
    seen = []
    for ids, calls in zip(notes["ids"].tolist(), notes["calls"].tolist(), strict=True):
        assert calls == [seen.count(k) for k in ids]
        seen += ids
