"""Misspelled, superfluous and missing arguments end in a sentence, and so does a run inside a
transformation of JAX."""

import importlib
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax import codecs, core, data, models, observe
from fedax.algorithms import algorithm_classes
from fedax.core import InvalidInput
from fedax.core.hyper import declared
from fedax.core.scheduling.sampling import Sampling
from fedax.utils.arguments import check_call, checked_call

TASK = fedax.tasks.from_loss(lambda w, x: (w - x) ** 2, 0.0, clients=[[1.0, 2.0], [3.0]])


def public_classes():
    """Classes of the public modules whose objects a user makes."""
    modules = (core, codecs, data, models, observe, fedax.attacks)
    found = [
        value
        for module in modules
        for name, value in vars(module).items()
        if not name.startswith("_")
    ]
    found += [getattr(fedax, name) for name in fedax.__all__]
    classes = {
        value for value in found if isinstance(value, type) and not issubclass(value, Exception)
    }
    made = {
        fedax.History,
        fedax.Client,
        fedax.Federation,
        fedax.Session,
        fedax.RunState,
        fedax.Report,
        fedax.Profile,
    }
    made |= {fedax.Progress, fedax.Best, fedax.Outcome, models.Model}
    return sorted(
        (c for c in classes - made if not issubclass(c, tuple) and not inspect.isabstract(c)),
        key=lambda c: c.__qualname__,
    )


USERS = [
    *algorithm_classes().values(),
    *(
        c
        for c in public_classes()
        if issubclass(c, core.Solver | Sampling | fedax.codecs.Codec | fedax.observe.Observer)
    ),
    *(c for c in public_classes() if c.__module__.startswith(("fedax.models", "fedax.attacks"))),
    *(
        fedax.Schedule,
        fedax.Channel,
        fedax.Privacy,
        fedax.LocalProblem,
        fedax.Graph,
        fedax.Simulation,
        fedax.Eager,
    ),
    *(fedax.EarlyStopping, fedax.Divergence, data.FederatedData),
]


@pytest.mark.parametrize(
    "kind", sorted(set(USERS), key=lambda c: c.__qualname__), ids=lambda c: c.__name__
)
def test_arguments_that_a_class_does_not_have_are_refused(kind):
    known = inspect.signature(kind).parameters
    with pytest.raises(
        InvalidInput, match=f"argument of {kind.__name__}: got 'no_such_argument'; allowed: one of"
    ):
        kind(no_such_argument=1)
    with pytest.raises(InvalidInput, match=kind.__name__):
        kind(*range(len(known) + 1))
    for name in list(known)[:1]:
        with pytest.raises(InvalidInput, match=f"Did you mean '{name}'" if len(name) > 2 else name):
            kind(**{f"{name}x": 1})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: fedax.FedProx(muu=1.0),
            "argument of FedProx: got 'muu'; allowed: one of ids, mu, server. Did you mean 'mu'?",
        ),
        (lambda: fedax.FedProx(0.1), "FedProx(...): got 0.1; allowed: hyperparameters by name"),
        (
            lambda: fedax.Schedule(10),
            "Schedule(...): got 10; allowed: arguments by name, Schedule(epochs=..., ",
        ),
        (lambda: fedax.Optax(), "Optax(...): missing a required argument: 'optimizer'."),
        (
            lambda: fedax.DSGD(graph="ring"),
            "DSGD(graph=...): got 'ring'; allowed: a fedax.Graph, or None. Write topology='ring'.",
        ),
        (lambda: fedax.DFedAvgM(graph=np.eye(3)), "DFedAvgM(graph=...): got array("),
        (
            lambda: fedax.SGD(0.1, learning_rate=0.1),
            "SGD(...): multiple values for argument 'learning_rate'.",
        ),
    ],
)
def test_the_message_says_what_to_write(make, message):
    with pytest.raises(InvalidInput) as error:
        make()
    assert str(error.value).startswith(message)


def test_checked_objects_are_copied_and_pickled_as_before():
    for value in (
        fedax.FedProx(mu=0.5),
        fedax.Schedule(cohort=2),
        fedax.Divergence(2.0),
        fedax.EarlyStopping(patience=3),
    ):
        assert jax.tree.structure(pickle.loads(pickle.dumps(value))) == jax.tree.structure(value)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, fedax.FedProx(mu=0.5))
    assert doubled.mu == 1.0


def test_functions_can_be_checked_too():
    @checked_call
    def scaled(x, *, factor=2):
        return factor * x

    assert scaled(2, factor=3) == 6
    with pytest.raises(
        InvalidInput,
        match=r"argument of scaled: got 'factr'; allowed: one of factor, x. Did "
        r"you mean 'factor'",
    ):
        scaled(2, factr=3)
    check_call("plain", lambda *values, **options: None, [1], {"a": 1})


@pytest.mark.parametrize("transformation", [jax.jit, jax.vmap, jax.grad, jax.jacfwd])
def test_a_run_inside_a_transformation_is_refused(transformation):
    def trained(mu):
        return fedax.run(fedax.FedProx(mu=mu), TASK, rounds=1).params

    given = jnp.ones(2) if transformation is jax.vmap else 1.0
    with pytest.raises(
        InvalidInput,
        match=r"run: called inside jax.jit, jax.vmap or jax.grad. "
        r"Call it outside",
    ):
        transformation(trained)(given)


def test_a_run_by_hand_inside_jit_is_refused():
    with pytest.raises(InvalidInput, match="start: called inside"):
        jax.jit(lambda: fedax.start(fedax.FedAvg(), TASK).state.round)()


PUBLIC = (
    "algorithms",
    "attacks",
    "audit",
    "codecs",
    "data",
    "graphs",
    "layers",
    "models",
    "observe",
    "privacy",
    "tasks",
)
THEORY = ("constants", "dfedavgm", "estimate", "fedaware", "fedbc", "feddane", "live", "local_gd")


def public_functions():
    """Functions of the public modules, and methods of the classes whose objects a user works with,
    by name."""
    modules = [fedax, *(importlib.import_module(f"fedax.{name}") for name in PUBLIC)]
    modules += [importlib.import_module(f"fedax.theory.{name}") for name in THEORY]
    found = {}
    for module in modules:
        for name in getattr(module, "__all__", None) or vars(module):
            value = getattr(module, name)
            home = getattr(value, "__module__", "")
            ours = (
                home.startswith("fedax")
                and not home.endswith(("arguments", "_limits", "errors"))
                and not name.startswith("_")
            )
            if (
                ours
                and callable(value)
                and not isinstance(value, type)
                and hasattr(value, "__name__")
            ):
                found[f"{module.__name__}.{name}"] = value
    for owner in (fedax.Graph, fedax.History, fedax.Session, data.FederatedData, data.Tokens):
        for name, part in vars(owner).items():
            if inspect.isroutine(part) and not name.startswith("_") and name not in ("at", "mix"):
                found[f"{owner.__name__}.{name}"] = getattr(owner, name)
    return found


@pytest.mark.parametrize("name", sorted(public_functions()))
def test_options_that_a_function_does_not_have_are_refused(name):
    function = public_functions()[name]
    known = inspect.signature(function).parameters
    first = [object()] if list(known)[:1] == ["self"] else []
    with pytest.raises(InvalidInput, match="no_such_option"):
        function(*first, no_such_option=1)
    plain = [
        key
        for key, one in known.items()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    for key in [key for key in plain if key != "self"][-1:]:
        with pytest.raises(InvalidInput, match=f"Did you mean '{key}'" if len(key) > 2 else key):
            function(*first, **{f"{key}x": 1})


def test_too_many_values_of_a_function_are_refused():
    with pytest.raises(
        InvalidInput,
        match=r"iid\(...\): got 1; allowed: arguments by name, iid\(n=..., "
        r"clients=..., seed=...\)",
    ):
        data.iid(10, 2, 0, 1)
    with pytest.raises(
        InvalidInput,
        match=r"Graph.ring\(...\): got 3; allowed: arguments by name, "
        r"Graph.ring\(clients=...\)",
    ):
        fedax.Graph.ring(4, 3)


def test_a_type_error_of_the_function_itself_is_passed_on():
    @checked_call
    def sum_of(values):
        return sum(values)

    with pytest.raises(TypeError, match="not iterable"):
        sum_of(3)


def check_of_sgd(name, value):
    """Checks a hyperparameter as the constructor does, which these tests type-check before."""
    declared(fedax.SGD)[name].check("SGD", value)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: fedax.SGD(lr=0.1), r"argument of SGD: got 'lr'.*Write learning_rate=\."),
        (
            lambda: check_of_sgd("learning_rate", optax.constant_schedule(0.1)),
            r'decay=0\.99.*decay_by="run"',
        ),
        (lambda: fedax.Adam, r"Write fedax\.Optax\(optax\.adam\(0\.001\)\)"),
        (lambda: fedax.load, r"Write fedax\.load_params"),
        (lambda: fedax.save, r"Write history\.save"),
        (lambda: fedax.run(fedax.FedAvg(), TASK, device="cuda"), "fedax doctor.*JAX_PLATFORMS"),
        (lambda: fedax.run(fedax.FedAvg(), TASK, epochs=2), r"fedax\.Schedule\(epochs=2\)"),
        (lambda: fedax.run(fedax.FedAvg(), TASK, batch_size=8), r"Schedule\(batch_size=8\)"),
    ],
)
def test_habits_of_other_libraries_are_refused_with_what_to_write(refused, message):
    with pytest.raises((InvalidInput, TypeError, AttributeError), match=message):
        refused()
