"""`schedule.decay`, which is the solver's now."""

import pytest

from fedax.core import InvalidInput, SpecError
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.older import upgrade_spelling

HEAD = 'name = "T"\nrounds = 2\n[task]\nname = "synthetic"\n'


def decays(text):
    return [member.solver.make().decay for member in Experiment.parse(HEAD + text).members()]


def test_one_of_an_algorithm_overrides_the_common_decay():
    common = "[schedule]\ndecay = 0.9\n"
    own = (
        '[[algorithm]]\nname = "fedavg"\nschedule = {decay = 1}\n[[algorithm]]\nname = "fedprox"\n'
    )
    assert decays(common + own) == [1, 0.9]
    assert decays("[solver]\ndecay = 0.9\n" + own) == [1, 0.9]


def test_one_is_not_given_to_solvers_that_do_not_know_it():
    text = (
        "[solver]\ndecay = 0.9\n"
        '[[algorithm]]\nname = "fedavg"\nschedule = {decay = 1}\nsolver = {name = "exact"}\n'
    )
    (member,) = Experiment.parse(HEAD + text).members()
    assert member.solver.options == {}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[schedule]\ndecay = 0.5\n[solver]\ndecay = 0.9\n[[algorithm]]\nname = "fedavg"\n', 6),
        ('[schedule]\ndecay = 1\n[solver]\ndecay = 0.9\n[[algorithm]]\nname = "fedavg"\n', 6),
        (
            '[[algorithm]]\nname = "fedavg"\nsolver = {decay = 0.9}\nschedule = {decay = 0.5}\n',
            8,
        ),
    ],
)
def test_two_decays_are_refused(text, line):
    with pytest.raises(
        SpecError,
        match=rf"line {line}: schedule.decay: is .*, but the solver's decay is 0.9. It is the "
        "solver's: remove it from the schedule",
    ):
        Experiment.parse(HEAD + text)


def test_two_equal_decays_are_one():
    text = '[schedule]\ndecay = 0.9\n[solver]\ndecay = 0.9\n[[algorithm]]\nname = "fedavg"\n'
    assert decays(text) == [0.9]


def test_a_setting_over_the_decay_of_the_file_is_refused(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(HEAD + '[solver]\ndecay = 0.9\n[[algorithm]]\nname = "fedavg"\n')
    with pytest.raises(SpecError, match=r"--set schedule.decay=0.5: schedule.decay: is 0.5"):
        Experiment.read(file, ["schedule.decay=0.5"])


def test_python_values_and_stored_copies():
    both = {"schedule": {"decay": 0.5}, "solver": {"decay": 0.9}}
    with pytest.raises(InvalidInput, match=r"schedule.decay: is 0.5"):
        upgrade_spelling(both)
    # a copy has the default of the schedule written out
    stored = upgrade_spelling({"schedule": {"decay": 1.0}, "solver": {"decay": 0.9}}, True)
    assert stored == {"schedule": {}, "solver": {"decay": 0.9}}
