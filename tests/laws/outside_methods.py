"""Eleven methods of other papers, as somebody outside of fedax writes them: all pass the
conformance tests."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedax.codecs import TopK
from fedax.core import (
    Algorithm,
    Citation,
    ClientStates,
    LocalProblem,
    Personal,
    Scalar,
    Upload,
    Which,
    hyper,
)
from fedax.graphs import Graph


class Anchored(eqx.Module):
    w: Any
    v: Any


class WithStates(eqx.Module):
    w: Any
    g: Any
    clients: ClientStates


def walk(client, w, direction):
    """Takes this round's minibatch steps of the learning rate along a direction of (minibatch,
    model)."""
    rate = client.learning_rate

    def step(own, batch):
        return own - rate * direction(batch, own)

    return client.for_each_minibatch(step, w)


def slope(client, batch, w):
    return client.layout.ravel(batch.gradient(client.layout.unravel(w)))


def sharp(client, rho):
    """The gradient at the worst point near a model."""

    def direction(batch, w):
        g = slope(client, batch, w)
        return slope(client, batch, w + rho * g / jnp.maximum(jnp.linalg.norm(g), 1e-12))

    return direction


class ProxSkip(Algorithm):
    """ProxSkip with one communication a round; a client corrects its shift when it hears of the
    mean."""

    citation: ClassVar[Citation] = Citation("ProxSkip, ICML 2022", read=(), by_examples=True)

    def init(self, fed, w):
        return WithStates(w, w, fed.client_states((jnp.zeros_like(w), w)))

    def round(self, fed, state):
        w, states = fed.average(self.train, fed.everyone, state.w, states=state.clients)
        return WithStates(w, state.g, states)

    def train(self, client, w, own):
        shift, sent = own
        shift = shift + (w - sent) / (client.learning_rate * jnp.asarray(client.steps, w.dtype))
        y = client.minimize(LocalProblem(linear=-shift), start=w)
        return Upload(y, reference=w, state=(shift, y))


class SDANE(Algorithm):
    """Stabilized DANE: the proximal centre moves by its own rule."""

    lam: Scalar = hyper(1.0, low=0.0, open_low=True, doc="weight of the proximal term")
    mu: Scalar = hyper(0.1, low=0.0, doc="pull of the centre towards the model")

    def init(self, fed, w):
        return Anchored(w, w)

    def round(self, fed, state):
        cohort = fed.sample()
        g = fed.average(self.look, cohort, state.v)
        w = fed.average(self.train, cohort, state.v, g)
        after = fed.average(self.look, cohort, w)
        return Anchored(w, (self.lam * state.v + self.mu * w - after) / (self.lam + self.mu))

    def look(self, client, w):
        return Upload(client.gradient(w))

    def train(self, client, v, g):
        problem = LocalProblem(anchor=v, prox=self.lam, linear=g - client.gradient(v))
        return Upload(client.minimize(problem, start=v), reference=v)


class Mime(Algorithm):
    """Local steps with the server's momentum, which is fixed during a round."""

    beta: Scalar = hyper(0.5, low=0.0, high=1.0, open_high=True, doc="momentum")

    def init(self, fed, w):
        return Anchored(w, jnp.zeros_like(w))

    def round(self, fed, state):
        cohort = fed.sample()
        c = fed.average(self.look, cohort, state.w)
        w = fed.average(self.train, cohort, state.w, state.v, c)
        return Anchored(w, self.beta * state.v + (1 - self.beta) * c)

    def look(self, client, w):
        return Upload(client.gradient(w))

    def train(self, client, w, m, c):
        def direction(batch, own):
            return (1 - self.beta) * (
                slope(client, batch, own) - slope(client, batch, w) + c
            ) + self.beta * m

        return Upload(walk(client, w, direction), reference=w)


class FedSpeed(Algorithm):
    """Proximal steps along gradients at a perturbed point, with a correction that each client
    keeps; the server averages the models alone."""

    rho: Scalar = hyper(0.05, low=0.0, doc="size of the perturbation")
    alpha: Scalar = hyper(0.1, low=0.0, open_low=True, doc="weight of the proximal term")

    def init(self, fed, w):
        return WithStates(w, w, fed.client_states(jnp.zeros_like(w)))

    def round(self, fed, state):
        w, states = fed.average(self.train, fed.sample(), state.w, states=state.clients)
        return WithStates(w, state.g, states)

    def train(self, client, w, own):
        climb = sharp(client, self.rho)
        y = walk(client, w, lambda batch, v: climb(batch, v) - own + self.alpha * (v - w))
        new = own - self.alpha * (y - w)
        return Upload(y, reference=w, state=new)


class FedSAM(Algorithm):
    """Sharpness-aware local steps."""

    rho: Scalar = hyper(0.05, low=0.0, doc="size of the perturbation")

    def round(self, fed, w):
        return fed.average(self.train, fed.sample(), w)

    def train(self, client, w):
        return Upload(walk(client, w, sharp(client, self.rho)), reference=w)


class DFedSAM(Algorithm):
    """Sharpness-aware local steps, then two exchanges with the neighbours."""

    rho: Scalar = hyper(0.05, low=0.0, doc="size of the perturbation")

    @property
    def equal_weights(self):
        return True

    def network(self, clients):
        return Graph.ring(clients)

    def init(self, fed, w):
        return fed.client_states(w)

    def round(self, fed, state):
        graph = self.network(fed.clients)
        state = fed.exchange(graph, self.train, self.receive, state)
        return fed.exchange(graph, self.send, self.receive, state)

    def train(self, client, own):
        return Upload(walk(client, own, sharp(client, self.rho)))

    def send(self, client, own):
        return Upload(own)

    def receive(self, client, own, received):
        return received

    def nodes(self, state):
        return state

    def model(self, state):
        return state.mean()


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
        parts, _ = codec.compress(client.gradient(w) - own, client.key("codec"))
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


class FedBABU(Algorithm):
    """The head stays as it was drawn, and clients tune it for themselves."""

    head: Which = hyper("b", leaves=True, doc="leaves that are not trained together")

    def round(self, fed, w):
        return fed.average(self.train, fed.sample(), w)

    def train(self, client, w):
        body = client.layout.part(self.head, "FedBABU(head=...)").others
        return Upload(client.minimize_only(body, w), reference=w)

    def personal(self, state):
        return Personal(self.tune, (state,))

    def tune(self, client, w):
        return client.minimize(start=w)


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


RIGHT = [ProxSkip, SDANE, Mime, FedSpeed, FedSAM, DFedSAM, EF21, FedBuff, FedBABU, PushSum, DiLoCo]
