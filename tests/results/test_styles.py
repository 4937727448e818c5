"""A method looks the same wherever it stands, and no two labels of a figure look alike."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedax.results.drawing.styles import _METHODS, colour_of, dash_of, marker_of, styles

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


def look(style):
    return colour_of(style), dash_of(style), marker_of(style)


@pytest.mark.slow
@given(labels)
def test_looks_differ_and_methods_keep_theirs(names):
    found = styles(names)
    assert list(found) == names
    assert len({look(style) for style in found.values()}) == len(names)
    for name in names:
        if name in METHODS or (
            name.endswith(" as released") and name.removesuffix(" as released") in METHODS
        ):
            assert found[name] == styles([name])[name]


@given(labels)
def test_forms_share_the_hue_of_their_method(names):
    found = styles([*METHODS, *names])
    for name in names:
        for method in METHODS:
            if re.match(rf"{re.escape(method)}( as |,| at )", name):
                assert found[name] % 8 == found[method] % 8
                assert dash_of(found[name]) != dash_of(found[method]) or marker_of(
                    found[name]
                ) != marker_of(found[method])


def test_methods_have_solid_lines_in_colours_of_their_own():
    found = styles(METHODS)
    assert {dash_of(style) for style in found.values()} == {"-"}
    assert len({colour_of(style) for style in found.values()}) == len(METHODS)


SECOND = ["FedAvgM", "FedAWARE", "FedDyn", "DFedAvgM", "DSGD", "pFedMe", "FedMGDA+"]


@given(st.lists(st.sampled_from([*METHODS, *SECOND]), min_size=1, max_size=8, unique=True))
def test_up_to_eight_methods_have_solid_lines_of_different_colours(names):
    found = styles(names)
    assert len({style % 8 for style in found.values()}) == len(names)
    assert {dash_of(style) for style in found.values()} == {"-"}
    for name in set(names) & set(METHODS):
        assert found[name] == _METHODS[name]


def test_beyond_eight_colours_markers_differ():
    found = styles([*METHODS, "FedAvgM", "Mine"])
    assert found["FedAvgM"] % 8 == found["FedBC"] % 8
    assert marker_of(found["FedAvgM"]) != marker_of(found["FedBC"])
    assert look(found["Mine"]) not in {look(found[name]) for name in found if name != "Mine"}


def test_other_labels_take_what_methods_leave():
    found = styles(["Mine", "FedAvgM", "FedBC"])
    assert len({style % 8 for style in found.values()}) == 3
    assert found == dict(zip(["Mine", "FedAvgM", "FedBC"], found.values(), strict=True))


def test_a_name_that_only_begins_like_a_method_is_another_one():
    found = styles(["FedBCx", "FedAvg-2", "FedAvgM", "FedAvg"])
    assert found["FedAvg"] == styles(["FedAvg"])["FedAvg"]
    assert found["FedBCx"] % 8 not in {found["FedAvg"] % 8, found["FedAvgM"] % 8}
    assert colour_of(found["FedAvgM"]) != colour_of(found["FedAvg"])


@pytest.mark.parametrize("count", [9, 40, 100])
def test_there_is_a_look_for_any_number_of_forms(count):
    found = styles([f"FedDANE, mu = {k}" for k in range(count)])
    assert len(set(found.values())) == count
    assert len({look(style) for style in found.values()}) == min(count, 64)
