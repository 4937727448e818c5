"""A data frame with a column that says whose each row is."""

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
    return (e["x"] @ params["w"] + params["b"] - e["y"]) ** 2 / 2


# real labels have classes=0; heights and sizes are standardized
data = fedax.data.from_table(frame, client="shop", y="weight", classes=0)
task = fedax.Task({"w": np.zeros(2), "b": 0.0}, loss, data)
history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=30)
print(history.params)
