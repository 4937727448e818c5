"""Mistakes, each with the laws of which at least one has to find it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.core import Algorithm, Citation, ClientStates, LocalProblem, Reduction, Upload

CARD = Citation("nobody", read=(), by_examples=True, exact=True)
SEEN = []


class State(eqx.Module):
    x: jax.Array
    c: jax.Array
    clients: ClientStates


class Average(Algorithm):
    citation = Citation("nobody", read=(), by_examples=True)

    def round(self, fed, w):
        return fed.average(self.train, fed.sample(), w)

    def train(self, client, w):
        return Upload(client.minimize(start=w))


class Controlled(Algorithm):
    """SCAFFOLD with option I, right as it stands."""

    citation = CARD

    def init(self, fed, w):
        return State(w, jnp.zeros_like(w), fed.client_states(jnp.zeros_like(w)))

    def cohort(self, fed):
        return fed.sample().distinct

    def part(self, fed):
        return fed.answered.coverage

    def round(self, fed, state):
        (dx, dc), memory = fed.average(
            self.train, self.cohort(fed), state.x, state.c, states=state.clients
        )
        return State(state.x + dx, state.c + self.part(fed) * dc, memory)

    def linear(self, c, own):
        return c - own

    def train(self, client, x, c, own):
        new = client.gradient(x)
        y = client.minimize(LocalProblem(linear=self.linear(c, own)), start=x)
        return Upload((y - x, new - own), state=new)

    def model(self, state):
        return state.x


class EqualWeights(Average):
    def round(self, fed, w):
        return fed.gather(self.train, fed.sample(), w).value.mean(0)


class EqualWeightsDeclared(EqualWeights):
    """Says that it is FedAvg, which it is for clients of equal sizes only."""

    citation = Citation("nobody", read=(), reductions=(Reduction({}, "fedavg"),))


class WithoutPart(Controlled):
    def part(self, fed):
        return 1.0


class DefaultWeights(Controlled):
    def cohort(self, fed):
        return fed.sample()


class WrongSign(Controlled):
    def linear(self, c, own):
        return own - c


class ReadsAll(Controlled):
    def round(self, fed, state):
        seen = self.look(state.clients)
        return super().round(fed, State(state.x - 0.01 * seen, state.c, state.clients))

    def look(self, clients):
        return clients.all().mean(0)


class ReadsOne(ReadsAll):
    def look(self, clients):
        return clients.of(0)


class Forgets(Controlled):
    def train(self, *arguments):
        return Upload(super().train(*arguments).value)


class KeepsOld(Controlled):
    def round(self, fed, state):
        new = super().round(fed, state)
        return State(new.x, new.c, state.clients)


class Smuggles(Average):
    def round(self, fed, w):
        def train(client):
            return Upload(client.minimize(start=w))

        return fed.average(train, fed.sample())


class NumpyRandom(Average):
    def train(self, client, w):
        return Upload(client.minimize(start=w) + 0.01 * np.random.normal(), reference=w)  # noqa: NPY002


class ConstantKey(Average):
    def train(self, client, w):
        noise = jax.random.normal(jax.random.key(0), w.shape, w.dtype)
        return Upload(client.minimize(start=w) + 0.01 * noise, reference=w)


class PythonList(Average):
    def round(self, fed, w):
        SEEN.append(1)
        return super().round(fed, w) * (1 - 1e-3 * min(len(SEEN), 50))


class FirstTwice(Average):
    def train(self, client, w):
        weight = client.share * jnp.where(client.index == 0, 2.0, 1.0)
        return Upload(client.minimize(start=w), weight=weight, reference=w)


class Raises(Average):
    def train(self, client, w):
        raise AttributeError("of my own")


class WrongName(Average):
    def train(self, client, w):
        return Upload(w, weight=client.weight)


PLANTED = {
    EqualWeights: {"weighs_examples_alike"},
    EqualWeightsDeclared: {"reduces_as_declared"},
    WithoutPart: {"is_exact"},
    DefaultWeights: {"is_exact"},
    WrongSign: {"is_exact"},
    ReadsAll: {"leaves_memories_alone"},
    ReadsOne: {"leaves_memories_alone"},
    Forgets: {"leaves_memories_alone"},
    KeepsOld: {"leaves_memories_alone"},
    Smuggles: {"smuggles_nothing"},
    NumpyRandom: {"agrees_with_the_reference", "keeps_a_flat_model"},
    ConstantKey: {"keeps_a_flat_model"},
    PythonList: {"agrees_with_the_reference"},
    FirstTwice: {"ignores_the_order"},
}
