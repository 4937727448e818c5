"""A data set of the `datasets` library, from a folder, with a column of users."""

import datasets
import jax.numpy as jnp
import numpy as np

import fedax

rng = np.random.default_rng(0)
rows = {"x": rng.normal(size=(200, 4)).tolist(), "user": rng.integers(0, 5, 200).tolist()}
rows["y"] = [float(sum(x)) for x in rows["x"]]
datasets.Dataset.from_dict(rows).save_to_disk("measurements")

table = datasets.load_from_disk("measurements").to_pandas()
clients = {
    user: {"x": np.stack(rows["x"]), "y": rows["y"].to_numpy()}
    for user, rows in table.groupby("user")
}
task = fedax.tasks.from_loss(lambda w, e: (e["x"] @ w - e["y"]) ** 2 / 2, jnp.zeros(4), clients)
history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=20)
print(np.round(history.params, 2))
