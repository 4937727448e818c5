"""The shipped laws: four right methods of other papers break none, and mistakes are found, in
single precision as users have it."""

from pathlib import Path

import pytest

import fedax
from commands import call
from fedax.algorithms import algorithm_classes
from fedax.conformance import LAWS, check
from laws.outside_methods import RIGHT
from laws.planted import PLANTED
from marks import most_slow, slow
from problems import WATCHED, kinds_of_laws, named

HERE = Path(__file__).parent


def broken(verdicts):
    """The laws that are broken, with what they saw."""
    return {verdict.law.name: verdict.reason for verdict in verdicts if verdict.kind == "broken"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)
def test_right_methods_break_no_law(kind, single_precision):
    verdicts = list(check(kind))
    assert not broken(verdicts)
    assert sum(verdict.kind == "holds" for verdict in verdicts) >= 13


@pytest.mark.parametrize("kind", most_slow(PLANTED, 12), ids=lambda kind: kind.__name__)
def test_mistakes_are_found(kind, single_precision):
    assert broken(check(kind, [LAWS[name] for name in PLANTED[kind]])).keys() == PLANTED[kind]


@pytest.mark.parametrize(
    "kind",
    [slow(kind) for kind in kinds_of_laws() if kind.__name__ in WATCHED],
    ids=lambda kind: kind.__name__,
)
def test_the_further_laws_raise_no_false_alarm(kind):
    """On any method of the library."""
    assert not broken(check(kind, [LAWS["smuggles_nothing"], LAWS["leaves_memories_alone"]]))


FLAGGED = [
    kind
    for kind in algorithm_classes().values()
    if kind.citation.by_examples or kind.citation.exact
]


@pytest.mark.parametrize(
    "kind", [slow(kind) if kind is fedax.SCAFFOLDM else kind for kind in FLAGGED], ids=named
)
def test_flags_of_cards_hold(kind):
    laws = [
        LAWS[name]
        for name, flag in (("weighs_examples_alike", "by_examples"), ("is_exact", "exact"))
        if getattr(kind.citation, flag)
    ]
    assert {verdict.kind for verdict in check(kind, laws)} == {"holds"}


@pytest.mark.slow
def test_the_command_says_what_to_change():
    only = "--only", "is_exact", "--only", "counts_its_traffic"
    found = call("check", f"{HERE / 'planted.py'}:WithoutPart", *only)
    assert found.exit_code
    assert "fed.answered.coverage" in found.output
    assert "1 holds, 1 broken." in found.output
    unknown = call("check", f"{HERE / 'planted.py'}:WrongName")
    assert unknown.output.count("Did you mean 'objective_weight'") == 1
    assert str(call("check", f"{HERE / 'planted.py'}:Raises").exception) == "of my own"
    assert call("check", "fedprox:mu=0.5", "--only", "learns").exit_code == 0
    assert "Did you mean 'learns'" in call("check", "fedprox", "--only", "learn").output


def test_an_algorithm_is_checked_with_its_hyperparameters():
    (verdict,) = check(fedax.FedAvgM(lr=1000.0), [LAWS["learns"]])
    assert verdict.kind == "broken"
