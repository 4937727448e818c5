"""A method looks the same wherever it stands, and no two labels of a figure look alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedax.results.looks import _METHODS, choose_looks

METHODS = ["FedAvg", "FedProx", "SCAFFOLD", "q-FedAvg", "FedBC", "FedDANE", "FedYogi", "FedNova"]
FORMS = ["", " as released", " as written", ", K = 5", " at 0.01"]
labels = st.lists(
    st.one_of(
        st.builds("{}{}".format, st.sampled_from(METHODS), st.sampled_from(FORMS)),
        st.text(min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=24,
    unique=True,
)


def shown(look):
    return tuple(look.options[name] for name in ("color", "linestyle", "marker"))


@pytest.mark.slow
@given(labels)
def test_looks_differ_and_methods_keep_theirs(names):
    found = choose_looks(names)
    assert list(found) == names
    assert len({shown(look) for look in found.values()}) == len(names)
    for name in names:
        if name in METHODS or (
            name.endswith(" as released") and name.removesuffix(" as released") in METHODS
        ):
            assert found[name] == choose_looks([name])[name]


def test_methods_have_solid_lines_in_colours_of_their_own():
    found = choose_looks(METHODS)
    assert {shown(look)[1] for look in found.values()} == {"-"}
    assert len({look.hue for look in found.values()}) == len(METHODS)


SECOND = ["FedAvgM", "FedAWARE", "FedDyn", "DFedAvgM", "DSGD", "pFedMe", "FedMGDA+"]


@given(st.lists(st.sampled_from([*METHODS, *SECOND]), min_size=1, max_size=8, unique=True))
def test_up_to_eight_methods_have_solid_lines_of_different_colours(names):
    found = choose_looks(names)
    assert len({look.hue for look in found.values()}) == len(names)
    assert {shown(look)[1] for look in found.values()} == {"-"}
    for name in set(names) & set(METHODS):
        assert found[name].hue == _METHODS[name]


@pytest.mark.parametrize("count", [9, 40, 100])
def test_there_is_a_look_for_any_number_of_forms(count):
    found = choose_looks([f"FedDANE, mu = {k}" for k in range(count)])
    assert len(set(found.values())) == count
    assert len({shown(look) for look in found.values()}) == min(count, 8)
