"""DiLoCo on a language model of characters: AdamW at the clients, whose state they keep, and
Nesterov momentum outside.

Printed beside it: the same with AdamW afresh in every round, and plain averages (a server step of 1
without momentum).
"""

import numpy as np
import optax
from language_model import LETTERS, SCENE, Transformer, loss, sequences

import fedax

texts = fedax.data.roles_of(SCENE)
clients = {role: sequences(text, LETTERS, 16) for role, text in texts.items()}
model = fedax.models.linen(Transformer(len(LETTERS)), clients["BERNARDO"]["x"])
task = fedax.from_model(model, loss, clients)

schedule = fedax.Schedule(steps=10, batch_size=4)
outer = optax.sgd(0.7, momentum=0.9, nesterov=True)
for name, server, keep in (
    ("DiLoCo", outer, True),
    ("fresh AdamW", outer, False),
    ("plain averages", None, True),
):
    solver = fedax.Optax(optax.adamw(3e-3, weight_decay=0.1), keep=keep)
    history = fedax.run(
        fedax.FedAvg(server=server),
        task,
        solver=solver,
        schedule=schedule,
        rounds=10,
        observe_every=2,
    )
    bits = history.metrics["train_loss"] / np.log(2)
    print(
        f"{name:14} {bits[0]:.2f} bits a character before, {bits[-1]:.2f} after 10 rounds of "
        "10 steps"
    )
