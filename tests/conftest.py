"""Strict numerics for all tests: warnings are errors, shapes are checked, no silent promotion, two
host devices."""

import gc
import os
import re
import resource
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
collect_ignore = ["faults/fails.py"]  # a program, which takes arguments
# tests are small programs, many of them: how long they compile is what matters, and what was
# compiled once, by another worker or in a run before, is taken from there
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
)
if version("jaxlib").startswith("0.10."):  # later ones end the process at a flag they do not know
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

if (ROOT.parent / "shared" / "data").is_dir():
    os.environ.setdefault("FEDAX_DATA", str(ROOT.parent / "shared" / "data"))

if os.environ.get("FEDAX_CHECKED") != "0":  # answers sooner without
    import strict

    strict.install()

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from fedax.algorithms import algorithm_classes  # noqa: E402

settings.register_profile("noisy machines", deadline=None)
settings.load_profile("noisy machines")
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def single_precision():
    with jax.enable_x64(False):
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One worker runs all tests of a file, and in the laws all of an algorithm: they share what was
    traced and compiled."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return scope_of(nodeid)

    config.option.loadscopereorder = False
    return Files(config, log)


def scope_of(nodeid):
    """Returns the name of the tests that share what was compiled: those of a file, in the laws
    those of an algorithm."""
    file, _, test = nodeid.partition("::")
    if "recipes" in file:  # each takes long, and they share nothing
        return nodeid
    return " ".join([file, *ALGORITHM.findall(test)[:1]]) if "laws" in file else file


WAITING = re.compile("deployed|faults|documents")
"""Files with few tests, which wait for processes."""


def pytest_collection_modifyitems(items):
    """At the end, a single worker would be left with them."""
    items.sort(key=lambda item: not WAITING.search(item.nodeid))


def pytest_collection_finish():
    """Spare the garbage collector the modules, which stay, and most of the traces: a twentieth of
    the time of tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


STATUS = Path("/proc/self/statm")
"""Where Linux says how many pages a process has in memory."""


def pytest_runtest_teardown(item, nextitem):
    """Drops compiled programs between files before they fill the memory of a machine: a worker
    that has run all slow tests would hold 8 GB."""
    if nextitem is None or scope_of(item.nodeid) == scope_of(nextitem.nodeid):
        return
    if STATUS.exists() and int(STATUS.read_text().split()[1]) * resource.getpagesize() > 3e9:
        jax.clear_caches()


ALGORITHM = re.compile(
    rf"(?<![A-Za-z])(?:{'|'.join(sorted(algorithm_classes(), key=len, reverse=True))})(?![A-Za-z])",
    re.I,
)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with real data, or a skip."""
    places = [os.environ.get("FEDAX_DATA"), Path.home() / ".cache" / "fedax"]
    for place in places:
        if place and Path(place).is_dir():
            return Path(place)
    pytest.skip("no real data: set FEDAX_DATA to a folder with mnist.npz")


@pytest.fixture(autouse=True)
def _here(request):
    """Commands run in a folder of each test."""
    if request.path.parent.name == "cli":
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))


@pytest.fixture
def as_users_run():
    """Single precision, with JAX's own rules of promotion."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield
