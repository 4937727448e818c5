"""Low-rank adapters (LoRA) for a small transformer that stays frozen: every client sends the
adapters alone.
"""

import jax
import jax.numpy as jnp
import optax

import fedax

WIDTH, HEADS, RANK, LAYERS = 32, 4, 2, 1


def normed(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def transformer(params, x):
    """Rows of 8 pixels as tokens; queries and values have adapters."""
    h = x.reshape(-1, 8, 8) @ params["embed"] + params["place"]
    for layer, lora in zip(params["layers"], params["lora"]):
        own = {name: layer[name] + down @ up for name, (down, up) in lora.items()}
        q, k, v = (
            (normed(h) @ kernel).reshape(-1, 8, HEADS, WIDTH // HEADS)
            for kernel in (own["q"], layer["k"], own["v"])
        )
        h = h + jax.nn.dot_product_attention(q, k, v).reshape(h.shape) @ layer["out"]
        h = h + jax.nn.gelu(normed(h) @ layer["wide"]) @ layer["narrow"]
    return normed(h).mean(1) @ params["head"]


def start(key):
    keys = iter(jax.random.split(key, 99))

    def draw(*shape):
        return jax.random.normal(next(keys), shape) / shape[0] ** 0.5

    layers = [{name: draw(WIDTH, WIDTH) for name in ("q", "k", "v", "out")} for _ in range(LAYERS)]
    layers = [
        layer | {"wide": draw(WIDTH, 4 * WIDTH), "narrow": draw(4 * WIDTH, WIDTH)}
        for layer in layers
    ]
    base = {
        "embed": draw(8, WIDTH),
        "place": draw(8, WIDTH),
        "layers": layers,
        "head": draw(WIDTH, 10),
    }
    return base | {
        "lora": [
            {n: (draw(WIDTH, RANK), jnp.zeros((RANK, WIDTH))) for n in "qv"} for _ in range(LAYERS)
        ]
    }


def loss(params, e):
    return optax.softmax_cross_entropy_with_integer_labels(transformer(params, e["x"]), e["y"])


def accuracy(params, e):
    return (transformer(params, e["x"]).argmax(1) == e["y"]).astype(jnp.float32)


def task_of(data, params, **frozen):
    return fedax.tasks.from_loss(loss, params, data, scores={"accuracy": accuracy}, **frozen)


solver, schedule = fedax.Optax(optax.adam(3e-3)), fedax.Schedule(epochs=3, batch_size=32)
options = {"solver": solver, "schedule": schedule, "observe_every": 1}
# the base learns small digits 0 to 4, the clients all of them
data = fedax.data.digits("iid", clients=5)
known = [{name: own[name][own["y"] < 5] for name in own} for own in data.train]
old = fedax.run(fedax.FedAvg(), task_of(known, start), rounds=5, **options)
task = task_of(
    data.train, old.params, frozen=lambda name, leaf: not name.startswith(("lora", "head"))
)
new = fedax.run(fedax.FedAvg(), task, rounds=5, **options)
sent = new.bits.up[0] // 32 // 5
print(
    f"{sum(leaf.size for leaf in jax.tree.leaves(new.params))} parameters, of which a client "
    f"sends {sent} a round"
)
print(
    f"accuracy on all digits: {new.metrics['train_accuracy'][0]:.3f} before, "
    f"{new.metrics['train_accuracy'][-1]:.3f} after"
)
