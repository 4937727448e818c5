"""The tests run with types and shapes checked; without that they would prove less."""

import os

import jax.numpy as jnp
import pytest
from beartype.roar import BeartypeCallHintViolation

from fedax.graphs import mixed
from fedax.numerics.simplex import min_norm
from fedax.results.tables.statistics import digits

pytestmark = pytest.mark.skipif(
    os.environ.get("FEDAX_CHECKED") == "0", reason="types are not checked: FEDAX_CHECKED=0"
)


def test_dimensions_of_one_name_agree():
    with pytest.raises(BeartypeCallHintViolation, match="weights"):
        mixed(jnp.ones((3, 2)), jnp.zeros((3, 2), jnp.int32), jnp.ones((4, 2)))


def test_kinds_of_numbers_are_checked():
    with pytest.raises(BeartypeCallHintViolation, match="valid"):
        min_norm(jnp.eye(2), jnp.ones(2))


def test_types_of_functions_without_arrays_are_checked():
    with pytest.raises(BeartypeCallHintViolation, match="value"):
        digits("3")
