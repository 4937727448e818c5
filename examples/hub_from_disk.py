"""A table of the `datasets` library, from a folder, with a column of users."""

import datasets
import numpy as np

import fedax

rng = np.random.default_rng(0)
x = rng.normal(size=(200, 3))
rows = {"u": x[:, 0], "v": x[:, 1], "hand": rng.choice(["left", "right"], 200)}
rows["label"] = np.where(x.sum(1) + (rows["hand"] == "left") > 0, "yes", "no")
rows["user"] = rng.integers(0, 5, 200)
datasets.Dataset.from_dict(rows).save_to_disk("measurements")

table = datasets.load_from_disk("measurements")
data = fedax.data.from_table(table, client="user", y="label", test_fraction=0.2)
task = fedax.classification(data, fedax.models.Softmax(4, 2))
history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=20)
print(f"accuracy {history.last('test_accuracy'):.2f}")
