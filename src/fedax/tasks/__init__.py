"""Tasks: of data sets by name, and of a user's loss or model.

From your loss, model or data:
- `from_model`: a task of a model and a loss of its outputs.
- `classification`: a model that gives logits on federated data.
- `logistic`: binary logistic regression on federated data.

Data sets and your own tasks by name:
- `task`: also `fedax.task`.
"""

from fedax.tasks.from_model import classification as classification
from fedax.tasks.from_model import from_model as from_model
from fedax.tasks.logistic import logistic as logistic
from fedax.tasks.sources import task as task
