"""A data frame with a column that says whose each row is."""

import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedax

rng = np.random.default_rng(0)
frame = pd.DataFrame(
    {
        "height": rng.normal(170, 8, 300),
        "shoe": rng.normal(41, 2, 300),
        "shop": rng.choice(["a", "b", "c"], 300),
    }
)
frame["weight"] = 0.9 * frame["height"] - 90 + rng.normal(0, 3, 300)


def loss(params, e):
    x = jnp.stack([(e["height"] - 170) / 8, (e["shoe"] - 41) / 2], axis=1)
    return (x @ params["w"] + params["b"] - e["weight"]) ** 2 / 2


clients = {
    shop: {name: rows[name].to_numpy() for name in ("height", "shoe", "weight")}
    for shop, rows in frame.groupby("shop")
}
task = fedax.tasks.from_loss(loss, {"w": np.zeros(2), "b": 0.0}, clients)
history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=30)
print(history.params)
