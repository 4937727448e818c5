"""A model saved, loaded into a fresh task, trained on, and asked for predictions."""

import jax
import numpy as np

import fedax

task = fedax.task("digits", partition="shards", clients=10, model="mlp")
history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=10)
history.save("digits.safetensors")

params = fedax.load_params("digits.safetensors", like=task)
own = task.test[3]
probabilities = task.predict(params, own["x"])
print(f"client 3: {np.mean(probabilities.argmax(1) == own['y']):.3f} of its test digits are told")
further = fedax.run(
    fedax.FedAvg(), task, params="digits.safetensors", solver=fedax.SGD(0.1), rounds=5
)
moved = sum(
    float(abs(a - b).sum())
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(further.params))
)
print(
    f"test accuracy {history.metrics['test_accuracy'][-1]:.3f}, then "
    f"{further.metrics['test_accuracy'][-1]:.3f}; moved {moved:.1f}"
)
