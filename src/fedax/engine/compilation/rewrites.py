"""Switch of the two rewrites that make users' traced programs faster on CPUs: the environment
variable `FEDAX_KERNELS`.

| rewrite | what it changes | measured gain (docs/performance.md) |
|---|---|---|
| `fused_loop` | steps of small models as one compiled kernel | rounds 2 to 3 times as fast |
| `descent` | a dense layer's gradient and step in one call | 1 % (LeNet) to 10 % (CNN) a step |

`FEDAX_KERNELS=0` turns both off; programs then run as JAX traces them, and results differ by
rounding only. Without the variable `fused_loop` is used with the versions of jaxlib it was tested
with. With `FEDAX_KERNELS=1` other versions are tried as well, after a child process has compiled a
fused loop: a compiler that aborts ends the child, and the run takes the plain loop. `fedax doctor`
prints which case holds.
"""

import os

VARIABLE = "FEDAX_KERNELS"


def disabled_reason() -> str:
    """Returns why both rewrites are off, or an empty string if they are allowed."""
    return f"the environment variable {VARIABLE} is 0" if os.environ.get(VARIABLE) == "0" else ""


def allows_untested() -> bool:
    """Returns whether rewrites may also be tried with untested versions of jaxlib."""
    return os.environ.get(VARIABLE) == "1"
