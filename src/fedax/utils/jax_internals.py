"""All names of JAX outside its documented interface that fedax uses.

Only this module imports them, so that a release that moves one is answered here.
"""

from jax.extend.core import Literal as Literal
from jax.extend.core import Primitive as Primitive
from jax.extend.core import get_opaque_trace_state as get_opaque_trace_state
from jax.interpreters import batching as batching
from jax.interpreters import mlir as mlir
from jax.interpreters.partial_eval import dce_jaxpr as dce_jaxpr
