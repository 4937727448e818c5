"""Low-rank adapters (LoRA) for a small transformer that stays frozen: every client sends the
adapters alone.
"""

import jax
import numpy as np
import optax
from language_model import LETTERS, SCENE, Transformer, loss, sequences

import fedax

texts = fedax.data.roles_of(SCENE)
clients = {role: sequences(text, LETTERS, 16) for role, text in texts.items()}
model = fedax.models.linen(Transformer(len(LETTERS)), clients["BERNARDO"]["x"])
options = {
    "solver": fedax.Optax(optax.adam(1e-2)),
    "schedule": fedax.Schedule(steps=20, batch_size=4),
    "observe_every": 1,
}
# the base learns Bernardo's lines, the clients both roles'
known = fedax.from_model(model, loss, [clients["BERNARDO"]])
base = fedax.run(fedax.FedAvg(), known, rounds=5, **options)
task = fedax.from_model(model, loss, clients)
adapted = fedax.lora(task, 4, targets=["*.attention.kernel", "*.wide.kernel"], params=base)
tuned = fedax.run(fedax.FedAvg(), adapted, rounds=10, **options)
sent = tuned.bits.up[0] // 32 // len(clients)
size = sum(leaf.size for leaf in jax.tree.leaves(base.params))
print(f"{size} parameters; a client sends {sent} numbers a round")
bits = tuned.metrics["train_loss"] / np.log(2)
print(f"{bits[0]:.2f} bits a character before, {bits[-1]:.2f} after")
