"""Devices from measured durations: known devices are found again, and records that lack something
are refused."""

import re

import numpy as np
import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli.main import app
from fedax.engine.round.timing.fitting import (
    COLUMNS,
    DeviceFit,
    append_durations,
    fit_devices,
    read_durations,
)
from fedax.errors import DataError

CLIENTS, ROUNDS = 6, 300
NAMES = ("speed", "down", "up", "latency")


def record(path, noise=0.05, sizes=(2e3, 1e6)):
    """Writes durations of known devices, each part of the latency a third of it."""
    random = np.random.default_rng(0)
    devices = fedax.Devices(
        speed={"name": "lognormal", "median": 50.0, "sigma": 1.0},
        down={"name": "log_uniform", "low": 1e6, "high": 1e7},
        up={"name": "log_uniform", "low": 2e5, "high": 2e6},
        latency={"name": "uniform", "low": 0.1, "high": 0.5},
    )
    true = {name: devices.values(name, range(CLIENTS), 0) for name in NAMES}
    rows = []
    for t in range(ROUNDS):
        for k in range(CLIENTS):
            down, up = np.exp(random.uniform(*np.log(sizes), 2)).round()
            examples = int(random.integers(1, 200))
            ideal = {
                "download": 8 * down / true["down"][k],
                "compute": examples / true["speed"][k],
                "upload": 8 * up / true["up"][k],
            }
            for phase, amounts in (
                ("download", (int(down), "")),
                ("compute", ("", examples)),
                ("upload", (int(up), "")),
            ):
                seconds = ideal[phase] + true["latency"][k] / 3
                seconds *= 1 + noise * random.uniform(-1, 1) * np.sqrt(3)
                rows.append(("a", f"c{k}", t, phase, f"{seconds:.6f}", *amounts))
    append_durations(path, rows[: len(rows) // 2])
    append_durations(path, rows[len(rows) // 2 :])
    return true


def test_known_devices_are_found_again(tmp_path):
    """Five percent of noise on every duration, ten percent of error at most."""
    true = record(tmp_path / "durations.csv")
    result = CliRunner().invoke(app, ["clock", "fit", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert f"{CLIENTS} clients, {ROUNDS} rounds" in result.output
    median, most = map(float, re.findall(r"([0-9.]+)%", result.output))
    assert 0 < median < most < 10
    names = [f"c{k}" for k in range(CLIENTS)]
    devices = fedax.Devices(table=str(tmp_path / "devices.csv")).bound_to(names, CLIENTS)
    for name in NAMES:
        np.testing.assert_allclose(devices.values(name, range(CLIENTS), 0), true[name], rtol=0.1)


def test_without_noise_they_are_exact_and_so_are_the_rounds(tmp_path):
    path = tmp_path / "record.csv"
    true, fit = record(path, noise=0.0), fit_devices(read_durations(path))
    for name in NAMES:
        np.testing.assert_allclose(fit.columns[name], true[name], rtol=1e-3)
    assert fit.errors.max() < 1e-3


def test_work_that_was_not_counted_is_passed_over(tmp_path):
    """As deployments record it where the data decide how much work there is."""
    path = tmp_path / "durations.csv"
    record(path)
    counted = fit_devices(read_durations(path))
    assert counted.passed_over == 0
    # a second phase of every round, of some clients, before and after their other rows
    uncounted = [("a", f"c{k}", t, "compute", "9.0", "", "") for t in range(3) for k in (0, 4)]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0])
    append_durations(path, uncounted[1:])
    with path.open("a") as file:
        file.writelines(lines[1:])
    append_durations(path, uncounted[:1])
    fit = fit_devices(read_durations(path))
    assert fit.passed_over == 6
    for name in NAMES:
        ours = dict(zip(fit.clients, fit.columns[name], strict=True))
        assert ours == dict(zip(counted.clients, counted.columns[name], strict=True))
    np.testing.assert_array_equal(np.sort(fit.errors), np.sort(counted.errors))
    result = CliRunner().invoke(app, ["clock", "fit", str(path)])
    assert result.exit_code == 0, result.output
    assert "6 rows of compute without a number of examples were passed over" in result.output


def test_names_with_commas_and_quotes_come_back(tmp_path):
    names, path = ("north, ward 2", 'the "old" site', "plain"), tmp_path / "devices.csv"
    columns = {name: np.array([1.5, 2.5, 3.5]) for name in NAMES}
    DeviceFit(names, columns, np.zeros(1), ()).write(path)
    devices = fedax.Devices(table=str(path)).bound_to(["plain", *names[:2]], 3)
    for name in NAMES:
        np.testing.assert_allclose(devices.values(name, range(3), 0), [3.5, 1.5, 2.5])


def test_messages_of_one_size_leave_the_latency_in_the_bandwidth(tmp_path):
    path = tmp_path / "record.csv"
    true = record(path, noise=0.0, sizes=(1e5, 1e5))
    fit = fit_devices(read_durations(path))
    assert fit.merged == tuple(f"c{k}" for k in range(CLIENTS))
    expected = 8e5 / (8e5 / true["up"] + true["latency"] / 3)
    np.testing.assert_allclose(fit.columns["up"], expected, rtol=1e-3)
    assert fit.errors.max() < 1e-3
    output = CliRunner().invoke(app, ["clock", "fit", str(path), "--out", str(tmp_path / "t.csv")])
    assert "Messages of one size do not tell latency from bandwidth" in output.output
    assert (tmp_path / "t.csv").read_text().startswith("client,speed,down,up,latency\nc0,")


HEAD = ",".join(COLUMNS) + "\n"
ROWS = "a,0,0,download,0.5,100,\na,0,0,compute,0.5,,10\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + ROWS, "client 0: got no row of upload; allowed: rows of download, compute, upload"),
        (HEAD, "no row below the header"),
        (HEAD.replace("bytes", "bits") + ROWS, "line 1: got no column bytes"),
        (
            HEAD.replace("client", "device") + ROWS,
            "allowed: a header with client, round, phase, seconds, bytes, examples, each once",
        ),
        (HEAD + ROWS + "a,0,0,upload,-0.1,100,\n", "line 4, seconds: got '-0.1'"),
        (HEAD + ROWS + "a,0,0,upload,-0.1,100,\n", "clocks that disagree"),
        (HEAD + ROWS + "a,0,0,upload,0.1,,\n", "line 4, bytes: got ''; allowed: finite numbers"),
        (HEAD + "a,0,0,compute,0.1,,x\n", "line 2, examples: got 'x'"),
        (
            HEAD + ROWS + "a,0,0,upload,1,9,\na,1,0,download,1,9,\na,1,0,compute,1,,\n"
            "a,1,0,upload,1,9,\n",
            "client 1: got no row of compute with a number of examples; allowed: rows of download, "
            "compute, upload for each client. Where the data decide",
        ),
        (HEAD + "a,0,0,uplaod,0.1,100,\n", "line 2, phase: got 'uplaod'"),
        (HEAD + "a,0,-1,upload,0.1,100,\n", "line 2, round: got '-1'"),
        (HEAD + "a,,0,upload,0.1,100,\n", "line 2, client"),
        (HEAD + "a,0,0,upload,0.1\n", "7 values"),
    ],
)
def test_records_that_lack_something_are_refused_with_the_line(tmp_path, text, words):
    path = tmp_path / "durations.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(words)):
        fit_devices(read_durations(path), str(path))


def test_a_missing_record_says_who_writes_it(tmp_path):
    result = CliRunner().invoke(app, ["clock", "fit", str(tmp_path)])
    assert result.exit_code == 2
    with pytest.raises(DataError, match="which deployments write"):
        read_durations(tmp_path / "durations.csv")
