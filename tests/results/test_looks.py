"""No two labels of a figure look alike."""

from hypothesis import given
from hypothesis import strategies as st

from fedax.results.looks import choose_looks

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


@given(labels)
def test_looks_differ(names):
    found = choose_looks(names)
    assert list(found) == names
    assert len(set(found.values())) == len(names)


def test_eight_methods_have_solid_lines_of_different_colours():
    found = choose_looks(METHODS)
    assert {shown(look)[1] for look in found.values()} == {"-"}
    assert len({look.hue for look in found.values()}) == len(METHODS)


def test_many_methods_look_different():
    found = choose_looks([f"mu = {k}" for k in range(32)])
    assert len({shown(look) for look in found.values()}) == 32
