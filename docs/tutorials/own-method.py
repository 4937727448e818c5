# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own method
#
# An algorithm is a class with hyperparameters and three functions. `init` creates the state, `round`
# runs one communication round, and `model` returns the model in the state. In `round`, all
# communication goes through the methods of a *federation*, `fed`. On this page you write a method
# with client states, run it, and look at its cost.
#
# ## The smallest method

# %%
import jax.numpy as jnp

import fedax
from fedax.core import Algorithm, ModelAndStates, Scalar, Upload, Vector, hyper


class Averaging(Algorithm[Vector]):
    """Federated averaging."""

    def round(self, fed, w):
        return fed.average(self.train, fed.sample(), w)

    def train(self, client, w):
        return Upload(client.minimize(start=w))


task = fedax.task("synthetic", alpha=1.0, beta=1.0, clients=10)
setting = {
    "solver": fedax.SGD(0.01),
    "schedule": fedax.Schedule(cohort=5, batch_size=10),
    "rounds": 20,
    "observe": [fedax.observe.TrainLoss()],
    "observe_every": 20,
}
fedax.run(Averaging(), task, **setting).last("train_loss")

# %% [markdown]
# `train` is a *work function*. It runs on a client, and sees only that client and the values that
# were sent to it. You write no loop over clients, steps or batches: `client.minimize` runs the local
# solver for the work that the schedule gives the client.
#
# ## Hyperparameters, a local problem, client states
#
# In the next method every client stores its last local model, and pulls its local work towards it.
# `hyper` declares the range of a hyperparameter. fedax checks the range when the object is created,
# and shows it in help, messages and documentation.


# %%
class Anchored(Algorithm[ModelAndStates]):
    r"""Local work with a pull towards the client's own last model $m_k$.

    $$ w_k \approx \arg\min_v f_k(v) + \frac{\mu}{2} \lVert v - m_k \rVert^2, \qquad m_k \leftarrow w_k $$
    """

    mu: Scalar = hyper(0.1, low=0.0, doc="weight of the pull")

    def init(self, fed, w):
        return ModelAndStates(w, fed.client_states(w))

    def round(self, fed, state):
        w, states = fed.average(self.train, fed.sample(), state.w, states=state.clients)
        return ModelAndStates(w, states)

    def train(self, client, w, own):
        local = client.minimize(fedax.LocalProblem(anchor=own, prox=self.mu), start=w)
        return Upload(local, state=local)


for mu in (0.0, 0.1, 1.0):
    print(f"mu = {mu}: {fedax.run(Anchored(mu=mu), task, **setting).last('train_loss'):.4f}")

# %% [markdown]
# fedax refuses a value out of range, and names the field, the value and the range:

# %%
try:
    Anchored(mu=-1.0)
except fedax.InvalidInput as error:
    print(error)

# %% [markdown]
# You don't declare the cost. fedax traces one round, and finds its phases, traffic, client states and
# gradients:

# %%
cost = fedax.footprint(Anchored())
[(phase.work, phase.down.vectors, phase.up.vectors) for phase in cost.phases], cost.memory.vectors

# %% [markdown]
# ## Step by step
#
# `history.state` is the method's state after a run, of as many rounds as you like. To go round by round, step through a session by
# hand. The engine `fedax.Eager()` runs the same code in plain Python, so `print` and a debugger work
# inside a work function.

# %%
session = fedax.start(
    Anchored(), task, solver=fedax.SGD(0.01), schedule=fedax.Schedule(cohort=5, batch_size=10)
)
state = session.init()
for _ in range(3):
    state, report = session.step(state)
report.outcome, report.up

# %% [markdown]
# ## Checks
#
# With μ = 0 there is no pull, and the method is federated averaging. Such an identity is a good first
# test of a new method:

# %%
plain = fedax.run(Averaging(), task, **setting)
same = fedax.run(Anchored(mu=0.0), task, **setting)
bool(jnp.allclose(plain.metrics["train_loss"], same.metrics["train_loss"], rtol=1e-6))

# %% [markdown]
# ## Use it anywhere
#
# Save the class in a file, say `anchored.py`. You can then use the name `anchored.py:Anchored` like
# `fedavg`: in experiment files, in `fedax compare`, and in a deployment
# ([your own code](../guides/experiments.md)). `fedax check anchored.py:Anchored` runs the tests that
# all built-in methods pass. `fedax new algorithm NAME` writes such a file for a start. To add a
# method to fedax itself, see the [guide for contributors](../project/contributing.md).
