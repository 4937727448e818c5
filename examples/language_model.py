"""A language model of characters, federated by speaking role, on a scene that this script holds.
The last line is its own.

The model is a small transformer of Flax. Longer plays: `fedax.data.roles_of` of any text in this
form.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

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
LETTERS = "".join(sorted(set(SCENE)))


class Block(nn.Module):
    """Attention to earlier places, then two dense layers, each after a norm."""

    heads: int

    @nn.compact
    def __call__(self, h):
        width = h.shape[-1]
        projected = nn.Dense(3 * width, name="attention")(nn.LayerNorm()(h))
        by_head = projected.reshape(*h.shape[:2], 3, self.heads, -1)
        queries, keys, values = (by_head[:, :, i] for i in range(3))
        mixed = jax.nn.dot_product_attention(queries, keys, values, is_causal=True)
        h = h + nn.Dense(width, name="mixing")(mixed.reshape(h.shape))
        wide = nn.gelu(nn.Dense(4 * width, name="wide")(nn.LayerNorm()(h)))
        return h + nn.Dense(width, name="narrow")(wide)


class Transformer(nn.Module):
    """Logits of the next token at every place, for sequences of one length."""

    vocabulary: int
    width: int = 32
    heads: int = 2
    layers: int = 1

    @nn.compact
    def __call__(self, x):
        draw = nn.initializers.normal(0.02, jnp.float32)
        tokens = nn.Embed(self.vocabulary, self.width, embedding_init=draw, name="tokens")
        h = tokens(x) + self.param("places", draw, (1, x.shape[1], self.width))
        for i in range(self.layers):
            h = Block(self.heads, name=f"block{i}")(h)
        return tokens.attend(nn.LayerNorm()(h))


def sequences(text, letters, length):
    """Returns the numbers of a text's letters in rows, and of the letter after each."""
    numbers = fedax.data.encode(text, letters)
    rows = (len(numbers) - 1) // length
    x, y = (numbers[shift:][: rows * length].reshape(rows, length) for shift in (0, 1))
    return {"x": x, "y": y}


def loss(logits, examples):
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"]).mean(1)


def accuracy(logits, examples):
    return (logits.argmax(2) == examples["y"]).mean(1)


def main():
    length = 32
    model = Transformer(len(LETTERS), layers=2)
    roles = fedax.data.roles_of(SCENE)
    clients = {role: sequences(text, LETTERS, length) for role, text in roles.items()}
    adapted = fedax.models.linen(model, clients["BERNARDO"]["x"])
    task = fedax.from_model(adapted, loss, clients, scores={"accuracy": accuracy})
    solver = fedax.Optax(optax.adam(3e-3))
    schedule = fedax.Schedule(epochs=8, batch_size=8)
    history = fedax.run(
        fedax.FedAvg(), task, solver=solver, schedule=schedule, rounds=40, observe_every=10
    )
    bits = history.metrics["train_loss"] / np.log(2)
    for t, loss_in_bits, right in zip(history.rounds, bits, history.metrics["train_accuracy"]):
        print(f"round {t:3}: {loss_in_bits:.2f} bits a character, {right:.0%} right")

    line = fedax.data.encode("Nay, ", LETTERS).tolist()
    for place in range(len(line), length):
        row = jnp.pad(jnp.array(line), (0, length - place))
        logits = model.apply({"params": history.params}, row[None])
        line.append(int(logits[0, place - 1].argmax()))
    print("".join(LETTERS[number] for number in line))


if __name__ == "__main__":
    main()
