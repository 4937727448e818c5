"""Conformance tests of federated algorithms and tasks: laws that hold for those of this library and
for yours.

- `check`: tests a method against all laws, as `fedax check FILE:Class` does, or a task, as
  `fedax check --task FILE:name` does; each result is a `Verdict`.
- `LAWS`: the laws of methods; `TASK_LAWS`: those of tasks. `Law.test` is for tests of your own: it
  raises `Broken`, or `Skipped` where a law says nothing about a method.
- `Method`: a method under test.
"""

from fedax.conformance.laws import LAWS as LAWS
from fedax.conformance.method import Broken as Broken
from fedax.conformance.method import Law as Law
from fedax.conformance.method import Method as Method
from fedax.conformance.method import Skipped as Skipped
from fedax.conformance.method import Verdict as Verdict
from fedax.conformance.method import check as check
from fedax.conformance.tasks import TASK_LAWS as TASK_LAWS
