"""All names of JAX outside its documented interface that fedax uses.

Only this module imports them, so that a release that moves one is answered here.
"""

from jax.extend.core import get_opaque_trace_state as get_opaque_trace_state
