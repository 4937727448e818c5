"""DiLoCo on a language model of characters: AdamW at the clients, whose state they keep, and
Nesterov momentum outside.

Printed beside it: the same with AdamW afresh in every round, and plain averages (a server step of 1
without momentum).
"""

import jax.numpy as jnp
import optax

import fedax

SCENE = """
BERNARDO:
Who's there?
Long live the king!
He.

FRANCISCO:
Nay, answer me: stand, and unfold yourself.
Bernardo?
You come most carefully upon your hour.
For this relief much thanks: 'tis bitter cold,
And I am sick at heart.
"""

texts = fedax.data.roles_of(SCENE)
tokens = fedax.data.Tokens.of(texts.values(), "characters", 40)
model = fedax.models.Transformer(tokens.size, length=16, width=32, heads=2, layers=1)
task = fedax.tasks.language(texts, model, tokens=tokens, length=16, test_fraction=0)

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
    bits = history.metrics["train_loss"] / jnp.log(2)
    print(
        f"{name:14} {bits[0]:.2f} bits a character before, {bits[-1]:.2f} after 10 rounds of "
        "10 steps"
    )
