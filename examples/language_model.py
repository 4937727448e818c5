"""A language model of characters, federated by speaking role, on a scene that this script holds.
The last line is its own.

With all of tinyshakespeare: `fedax data prepare tinyshakespeare`, and `source="tinyshakespeare"`;
an experiment file says `[task] name = "language"`.
"""

import jax
import jax.numpy as jnp

import fedax

SCENE = """
BERNARDO:
Who's there?

FRANCISCO:
Nay, answer me: stand, and unfold yourself.

BERNARDO:
Long live the king!

FRANCISCO:
Bernardo?

BERNARDO:
He.

FRANCISCO:
You come most carefully upon your hour.

BERNARDO:
'Tis now struck twelve; get thee to bed, Francisco.

FRANCISCO:
For this relief much thanks: 'tis bitter cold,
And I am sick at heart.
"""

texts = fedax.data.roles_of(SCENE)
tokens = fedax.data.Tokens.of(texts.values(), "characters", 48)
model = fedax.models.Transformer(tokens.size, length=32, width=32, heads=2, layers=2)
task = fedax.tasks.language(texts, model, tokens=tokens, length=32, test_fraction=0)

solver, schedule = fedax.SGD(0.4), fedax.Schedule(epochs=8, batch_size=8)
history = fedax.run(
    fedax.FedAvg(), task, solver=solver, schedule=schedule, rounds=40, observe_every=10
)
for t, loss, right in zip(
    history.rounds, *(history.metrics[f"train_{name}"] for name in ("loss", "accuracy"))
):
    print(
        f"round {t:3}: {loss / jnp.log(2):.2f} bits a character, {right:.0%} of the next ones right"
    )

line = tokens.encode(["Nay, "])[0].tolist()
following = jax.jit(lambda row: model(history.params, row[None])[0].argmax(axis=1))
for place in range(len(line) - 1, 31):
    line.append(int(following(jnp.pad(jnp.array(line), (0, 31 - place)))[place]))
print(tokens.decode(line))
