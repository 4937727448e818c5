"""Strict numerics for all tests: warnings are errors, shapes are checked, no silent promotion, two host devices."""

import os
from pathlib import Path

# tests are small programs, many of them: what matters is how long they compile
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1",
)

ROOT = Path(__file__).parent.parent
if (ROOT.parent / "shared" / "data").is_dir():
    os.environ.setdefault("FEDAX_DATA", str(ROOT.parent / "shared" / "data"))

from jaxtyping import install_import_hook  # noqa: E402

install_import_hook("fedax", "strict.checked")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with real data, or a skip."""
    places = [os.environ.get("FEDAX_DATA"), Path.home() / ".cache" / "fedax"]
    for place in places:
        if place and Path(place).is_dir():
            return Path(place)
    pytest.skip("no real data: set FEDAX_DATA to a folder with mnist.npz")
