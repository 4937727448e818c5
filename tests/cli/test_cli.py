import json
import os
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest

import fedax
from commands import call, succeed
from fedax.algorithms import algorithm_classes
from fedax.engine.distributed.process_group import INTERRUPTED
from samples import TINY, made_up, record

COMPARE = [
    "compare",
    "fedavg",
    "fedprox:mu=1",
    "--task",
    "synthetic:clients=4",
    "--schedule",
    "cohort=2,steps=2",
    "--rounds",
    "2",
]


def refused(*arguments):
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.output
    return result.stderr


def test_version_and_help():
    assert call("--version").stdout == f"fedax {fedax.__version__}\n"
    text = call("--help").stdout
    for command in ("demo", "run", "validate", "compare", "algorithms", "report"):
        assert command in text
        succeed(command, "--help")


@pytest.mark.slow
def test_compare_run_and_report(tmp_path):
    result = succeed(*COMPARE, "--seeds", "0,1", "--out", "a")
    assert "FedProx mu=1" in result.stdout
    assert "2 algorithms, 1 task, 4 runs; all ended well." in result.stdout
    assert "Report: a/report.html" in result.stdout
    (tmp_path / "a" / "report.html").unlink()
    succeed("report", "a")
    assert (tmp_path / "a" / "report.html").exists()
    succeed("run", "a/study.toml")
    assert (tmp_path / "runs" / "synthetic-clients-4" / "report.html").exists()
    assert "kept: 4 runs." in call("run", "a/study.toml", "--out", "a").output
    assert "overwritten" in refused("run", "a/study.toml", "--set", "rounds=3", "--out", "a")


@pytest.mark.slow
def test_several_directories_on_one_page_and_as_figures(tmp_path):
    for name, runs in (
        ("a", [record("FedAvg"), record("FedBC")]),
        ("b", [record("FedAvg", losses=(2.0, 1.5, 1.0))]),
    ):
        made_up(tmp_path / name, *runs)
    assert "Report: c.html" in call("report", "a", "b", "--out", "c.html").stdout
    text = (tmp_path / "c.html").read_text()
    for label in ("FedAvg (a)", "FedAvg (b)", "FedBC"):
        assert f'<th scope="row">{label}</th>' in text
    assert "figures/train_loss.png" in call("report", "a", "b", "--figures", "png").stdout
    assert "format: got 'bmp'" in call("report", "a", "--figures", "bmp").stderr
    assert "a/figures/train_loss.png" in call("report", "a", "--figures", "png").stdout
    worst = {"client_accuracy_worst_tenth": np.linspace(0.1, 0.4, 3)}
    made_up(tmp_path / "w", record("FedBC", **worst))
    done = call("report", "w", "--figures", "png", "--metric", *worst)
    assert done.stdout.split() == ["w/figures/client_accuracy_worst_tenth.png"]
    for form in (["--figures", "png"], ["--table", "text"]):
        words = call("report", "w", *form, "--metric", "worst_tenth").stderr
        assert "Did you mean 'client_accuracy_worst_tenth'?" in words


@pytest.mark.slow
def test_recipes_are_listed_and_reproduced(tmp_path, monkeypatch):
    assert "fedbc-table-1: FedBC on synthetic data" in call("reproduce").stdout
    assert "Did you mean 'fedbc-table-1'" in refused("reproduce", "fedbc-table1")
    assert "scale: got 'huge'" in refused("reproduce", "fedbc-table-1", "--scale", "huge")
    assert "variants: got 'E = 2'" in refused("reproduce", "fedbc-table-1", "--variant", "E = 2")
    assert "Did you mean 'FedBC'" in refused("reproduce", "fedbc-table-1", "--algorithm", "FedBB")
    assert not (tmp_path / "runs").exists()


def test_bad_input_is_one_message(tmp_path):
    (tmp_path / "bad.toml").write_text(TINY.replace("mu = 1", "mo = 1"))
    (tmp_path / "broken.toml").write_text("name = \n")
    assert "bad.toml: hyperparameter of FedProx: got 'mo'" in refused("run", "bad.toml")
    assert "broken.toml: Invalid value (at line 1" in refused("run", "broken.toml")
    assert "No such file" in refused("run", "none.toml")
    for name, near in (("fedavgg", "fedavg"), ("fedrap", "fedrep")):
        words = refused("compare", name)
        assert f"Did you mean '{near}'? Allowed: one of" in words
    for method in ("fedprox", "proxskip"):
        words = refused("compare", f"{method}:learning_rate=0.1")
        assert "in [[algorithm]] as solver = {learning_rate = ...}, or in [grid]" in words
    assert "numbers in [0, infinity)" in refused("compare", "fedprox:mu=-1")
    assert "Did you mean 'synthetic'" in refused("compare", "fedavg", "--task", "sinthetic")
    assert "the number of clients" in refused(*COMPARE, "--schedule", "cohort=5")
    assert "seeds: got '[x]'" in refused(*COMPARE, "--seeds", "x")
    assert "not a run directory" in refused("report", "none")
    assert "Did you mean 'fedbc'" in refused("algorithms", "fedbcc")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_values_set_on_the_command_line_replace_those_of_the_file(tmp_path):
    (tmp_path / "a.toml").write_text(TINY)
    changes = [
        "--set",
        "rounds=1",
        "--set",
        "algorithm.1.mu=0.5",
        "--set",
        "seeds=[3]",
        "--set",
        "name=Changed",
    ]
    succeed("run", "a.toml", *changes, "--out", "a")
    kept = tomllib.loads((tmp_path / "a" / "study.toml").read_text())
    assert (kept["rounds"], kept["algorithm"][1]["mu"], kept["seeds"], kept["name"]) == (
        1,
        0.5,
        [3],
        "Changed",
    )
    words = refused("run", "a.toml", "--set", "rounds=-1")
    assert "a.toml: rounds: got -1; allowed: " in words
    assert "a.toml: hyperparameter" in refused("run", "a.toml", "--set", "algorithm.1.my=1")
    for wrong in ("rounds", "=1", "algorithm.2.mu=1", "algorithm.mu=1", "rounds.x=1", "task..a=1"):
        assert wrong in refused("run", "a.toml", "--set", wrong)


@pytest.mark.slow
def test_validate_runs_nothing_and_shows_the_whole_file(tmp_path, monkeypatch):
    (tmp_path / "a.toml").write_text(TINY)
    result = call("validate", "a.toml", "--set", "schedule.cohort=3")
    assert tomllib.loads(result.stdout)["schedule"]["cohort"] == 3
    assert "a.toml is valid: synthetic" in result.stderr
    assert "# The experiment makes" in result.stderr
    assert "`fedax run a.toml --set=schedule.cohort=3`" in result.stderr
    assert "the number of clients" in refused("validate", "a.toml", "--set", "schedule.cohort=9")
    assert [file.name for file in tmp_path.iterdir()] == ["a.toml"]
    monkeypatch.setitem(sys.modules, "wandb", None)
    words = refused("validate", "a.toml", "--set", 'trackers=["wandb"]')
    assert "tracker 'wandb': wandb is not installed" in words


@pytest.mark.slow
def test_algorithms_are_listed_with_their_papers():
    text = call("algorithms").stdout
    for kind in algorithm_classes().values():
        assert kind.citation.paper in text
    only = call("algorithms", "feddane").stdout
    assert "correction=off, cohorts=shared, mu=0.3 is FedProx(mu=0.3)" in only
    assert "pipelined=True" in only
    assert "FedBC" not in only


@pytest.mark.slow
def test_ctrl_c_in_a_real_process_leaves_a_valid_directory(tmp_path):
    command = [sys.executable, "-m", "fedax.cli", *COMPARE, "--rounds", "100000", "--out", "a"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "a" / "study.toml").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, err
    assert "Interrupted. a holds the runs so far" in out
    assert "Traceback" not in err
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "a" / "report.html").stat().st_size > 5_000


@pytest.mark.slow
def test_jax_is_set_up_for_all_cores_with_a_cache(tmp_path):
    code = (
        "import jax; from fedax.experiments.running.setup import set_up_jax as s; s(3); "
        "print(len(jax.devices('cpu'))); s()"
    )
    code += "; print(jax.config.values['jax_compilation_cache_dir'])"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["3", str(tmp_path / "fedax" / "programs")]
