"""What is learned: ready-made tasks, and tasks from your own loss."""

from fedax.tasks.own import from_loss as from_loss
