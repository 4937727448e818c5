"""Four methods of other papers, as somebody outside of fedax writes them: all pass the
conformance tests."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedax.codecs import TopK
from fedax.core import (
    Algorithm,
    ClientStates,
    Scalar,
    Upload,
    hyper,
)
from fedax.graphs import Graph


class WithStates(eqx.Module):
    w: Any
    g: Any
    clients: ClientStates


def slope(client, batch, w):
    return client.layout.ravel(batch.gradient(client.layout.unravel(w)))


class EF21(Algorithm):
    """Compressed differences of gradients; the fraction is a part of the program."""

    fraction: Scalar = hyper(
        0.5, static=True, low=0.0, open_low=True, high=1.0, doc="share of the entries that are sent"
    )
    lr: Scalar = hyper(0.1, low=0.0, open_low=True, doc="step size")

    def init(self, fed, w):
        zero = jnp.zeros_like(w)
        return WithStates(w, zero, fed.client_states(zero))

    def round(self, fed, state):
        w = state.w - self.lr * state.g
        change, memory = fed.average(self.look, fed.sample().distinct, w, states=state.clients)
        return WithStates(w, state.g + fed.answered.coverage * change, memory)

    def look(self, client, w, own):
        codec = TopK(self.fraction)
        parts = codec.compress(client.gradient(w) - own, client.key("codec"))
        sent = codec.restore(parts, w.shape[0], w.dtype)
        return Upload(sent, state=own + sent)


class FedBuff(Algorithm):
    """Clients that work on stale models; who is drawn is weighted by speed."""

    lr: Scalar = hyper(0.5, low=0.0, open_low=True, doc="server step")

    def init(self, fed, w):
        return WithStates(w, w, fed.client_states(w))

    def round(self, fed, state):
        speed = 1.0 + jnp.arange(fed.clients, dtype=state.w.dtype)
        cohort = fed.sample(speed)
        change, memory = fed.average(self.train, cohort, states=state.clients)
        w = state.w + self.lr * change
        _, memory = fed.average(self.fetch, cohort, w, states=memory)
        return WithStates(w, state.g, memory)

    def train(self, client, own):
        return Upload(client.minimize(start=own) - own, state=own)

    def fetch(self, client, w, own):
        return Upload((), state=w)


class PushSum(Algorithm):
    """Gradient steps on a directed ring with a chord, whose weights are column-stochastic only."""

    @property
    def equal_weights(self):
        return True

    def network(self, clients):
        own = np.arange(clients)
        neighbours = np.stack(
            [own, (own - 1) % clients, np.where(own == 0, clients // 2, own)], axis=1
        )
        out = np.where(own == clients // 2, 3.0, 2.0)
        weights = 1 / out[neighbours]
        weights[1:, 2] = 0.0
        return Graph(
            jnp.asarray(neighbours[None], jnp.int32), jnp.asarray(weights[None]), "directed"
        )

    def init(self, fed, w):
        return fed.client_states((w, jnp.ones((), w.dtype)))

    def round(self, fed, state):
        return fed.exchange(self.network(fed.clients), self.send, self.receive, state)

    def send(self, client, own):
        x, mass = own
        z = x / mass
        return Upload((x + client.minimize(start=z) - z, mass))

    def receive(self, client, own, received):
        return received

    def nodes(self, state):
        return state.each(lambda own: own[0] / own[1])

    def model(self, state):
        return self.nodes(state).mean()


class DiLoCo(Algorithm):
    """AdamW of Optax at the clients, whose state they keep, and Nesterov's momentum at the
    server."""

    rate: Scalar = hyper(0.05, low=0.0, open_low=True, doc="local learning rate")
    lr: Scalar = hyper(0.7, low=0.0, open_low=True, doc="server learning rate")
    momentum: Scalar = hyper(0.5, low=0.0, high=1.0, open_high=True, doc="of the server")

    def init(self, fed, w):
        return WithStates(w, jnp.zeros_like(w), fed.client_states(optax.adamw(self.rate).init(w)))

    def round(self, fed, state):
        change, memory = fed.average(self.train, fed.sample(), state.w, states=state.clients)
        speed = self.momentum * state.g + change
        return WithStates(state.w + self.lr * (self.momentum * speed + change), speed, memory)

    def train(self, client, w, own):
        optimizer = optax.adamw(self.rate, weight_decay=0.0)

        def step(carry, batch):
            v, state = carry
            updates, state = optimizer.update(slope(client, batch, v), state, v)
            return v + updates, state

        v, own = client.for_each_minibatch(step, (w, own))
        return Upload(v - w, state=jax.tree.map(jnp.asarray, own))


RIGHT = [EF21, FedBuff, PushSum, DiLoCo]
