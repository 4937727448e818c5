"""Mutated experiment files: a clear error or a valid experiment, never a traceback."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from samples import TINY

FULL = TINY + "\n[stop]\nrise = 1.0\nwindow = 5\n"
LINES = FULL.splitlines()
VALUES = st.sampled_from(
    ["-1", "0", "3", "1e400", "nan", "-inf", "true", '""', '"x"', "[]", "[1]", '["a"]', "{}", "{ a = 1 }", "1979-05-27", "'"]
)


@st.composite
def mutated(draw):
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["value", "key", "drop", "twice", "letter", "table"]))
        key, equals, _ = lines[at].partition("=")
        if kind == "value" and equals:
            lines[at] = f"{key}= {draw(VALUES)}"
        elif kind == "key" and equals:
            lines[at] = (
                draw(st.sampled_from(["x", "name", "mu", "clients", "alpha", "seed", "label"])) + lines[at][len(key) :]
            )
        elif kind == "drop":
            lines[at] = ""
        elif kind == "twice":
            lines.insert(at, lines[at])
        elif kind == "letter" and lines[at]:
            where = draw(st.integers(0, len(lines[at]) - 1))
            lines[at] = lines[at][:where] + draw(st.sampled_from(list("=[]\"'.#\\é\x00\t1"))) + lines[at][where + 1 :]
        elif kind == "table":
            lines[at] = draw(st.sampled_from(["[task]", "[[algorithm]]", "[solver]", "[schedule]", "[x]", "[stop.x]"]))
    return "\n".join(lines)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(mutated())
def test_a_mutated_file_is_refused_in_words_or_valid(text):
    try:
        Experiment.parse(text, "a.toml").plan()
    except InvalidInput as error:
        message = str(error)
        assert message.startswith("a.toml")
        assert "Traceback" not in message
