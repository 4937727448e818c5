"""Client files with texts: labels and categories by declared texts, one table of all clients, test
examples, prediction."""

from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from fedax import cli
from fedax.core import DataError, InvalidInput
from fedax.data import client_files

ROWS = [("north", 30 + i, "fm"[i % 2], ("healthy", "ill")[i % 3 == 0]) for i in range(10)]
ROWS += [("east", 50 + i, "m", "ill") for i in range(4)]
TEXTS = {"label": "diagnosis", "labels": ["healthy", "ill"], "categories": {"sex": ["f", "m"]}}


def table(path, rows=ROWS, head="hospital,age,sex,diagnosis"):
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_one_table_with_a_column_of_clients(tmp_path):
    data = client_files(table(tmp_path / "all.csv"), client="hospital", **TEXTS)
    assert list(data.names) == ["east", "north"]
    assert data.sizes.tolist() == [4, 10]
    assert list(data.columns) == ["age", "sex"]
    assert data.train[1]["x"][:2].tolist() == [[30.0, 0.0], [31.0, 1.0]]
    assert data.train[0]["y"].tolist() == [1, 1, 1, 1]
    assert data.classes == 2
    assert data.name == "all"


def test_parquet_too(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = dict(
        zip(("hospital", "age", "sex", "diagnosis"), zip(*ROWS, strict=True), strict=True)
    )
    parquet.write_table(
        pa.table({name: list(values) for name, values in columns.items()}), tmp_path / "all.parquet"
    )
    one = client_files(tmp_path / "all.parquet", client="hospital", **TEXTS)
    other = client_files(table(tmp_path / "all.csv"), client="hospital", **TEXTS)
    assert list(one.names) == list(other.names)
    for mine, yours in zip(one.train, other.train, strict=True):
        np.testing.assert_array_equal(mine["x"], yours["x"])
        np.testing.assert_array_equal(mine["y"], yours["y"])


@pytest.mark.parametrize("single", [True, False])
def test_test_examples_of_each_client(tmp_path, single):
    if single:
        options = {"folder": table(tmp_path / "all.csv"), "client": "hospital"}
    else:
        for name in ("north", "east"):
            table(
                tmp_path / f"{name}.csv",
                [row[1:] for row in ROWS if row[0] == name],
                "age,sex,diagnosis",
            )
        options = {"folder": tmp_path}
    data = client_files(**options, **TEXTS, test_fraction=0.3)
    assert [len(own["y"]) for own in data.train] == [2, 7]
    assert [len(own["y"]) for own in data.test] == [2, 3]
    again = client_files(**options, **TEXTS, test_fraction=0.3)
    np.testing.assert_array_equal(data.test[1]["x"], again.test[1]["x"])
    other = client_files(**options, **TEXTS, test_fraction=0.3, seed=1)
    assert not np.array_equal(data.test[1]["x"], other.test[1]["x"])
    last = client_files(**options, **TEXTS, test_fraction=0.3, split="in_order")
    assert last.test[1]["x"][:, 0].tolist() == [37.0, 38.0, 39.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ()}, r"'ill' in row 1 of the column 'diagnosis'.*labels=\['ill', 'healthy'\]"),
        (
            {"labels": ["healthy"]},
            r"got 'ill' in row 1 of the column 'diagnosis', client 'north'; allowed: the texts of "
            r"labels: \['healthy'\]",
        ),
        ({"categories": None}, r"'f' in row 1 of the column 'sex'.*categories=\{'sex': \[...\]\}"),
        (
            {"labels": ["ill", "ill"]},
            r"client_files\(labels=...\): got \['ill', 'ill'\]; allowed: a list of different texts",
        ),
        (
            {"client": "hospitl"},
            r"client_files\(client=...\), column of all.csv: got "
            r"'hospitl'.*Did you mean 'hospital'",
        ),
        (
            {"client": None},
            r"the file .*all.csv; allowed: a folder with one file per client. "
            r"Name the column .*client=...",
        ),
        ({"test_fraction": 1.0}, r"client_files\(test_fraction=...\): got 1.0"),
    ],
)
def test_messages_name_column_and_option(tmp_path, change, message):
    options = {"client": "hospital", **TEXTS} | change
    with pytest.raises((DataError, InvalidInput), match=f"(?s){message}"):
        client_files(table(tmp_path / "all.csv"), **options)


@pytest.mark.slow
def test_a_file_of_an_experiment_and_its_predictions(tmp_path, monkeypatch):
    """The trained model predicts for a table that still has its text labels."""
    monkeypatch.setattr("fedax.experiments.running.setup.set_up_jax", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "all.csv", [(*row[:2], *row[3:]) for row in ROWS], "hospital,age,diagnosis")
    Path("study.toml").write_text(
        'name = "a"\nrounds = 2\n[task]\nname = "client_files"\nfolder = "all.csv"\nclient = '
        '"hospital"\nlabel = "diagnosis"\n'
        'labels = ["healthy", "ill"]\ntest_fraction = 0.3\n[[algorithm]]\nname = "fedavg"\n'
    )
    call = lambda *arguments: CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, list(arguments))  # noqa: E731
    ran = call("run", "study.toml", "--out", "out")
    assert ran.exit_code == 0, ran.output
    predicted = call("predict", "out", "--data", "all.csv")
    assert predicted.exit_code == 0, predicted.output
    assert len(predicted.output.splitlines()) == len(ROWS) + 1


def frame(clients=("a", "b", "b", "a")):
    pd = pytest.importorskip("pandas")
    columns = {"age": [1.0, 2.0, 3.0, 4.0], "who": list(clients), "y": [0, 1, 1, 0]}
    return pd.DataFrame(columns)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_client_of_a_frame_is_no_client(missing):
    with pytest.raises(DataError, match=r"column 'who', row 1: got (None|nan)"):
        client_files(frame(["a", missing, "b", "a"]), client="who")


def test_numbers_and_texts_of_one_name_are_not_one_client():
    with pytest.raises(DataError, match="got 1 and '1', which have the same name"):
        client_files(frame([1, "1", 2, "2"]), client="who")
    assert list(client_files(frame([10, 9, 9, 10]), client="who").names) == ["9", "10"]


def test_names_with_dots_and_endings_in_capitals(tmp_path):
    table = frame().drop(columns="who")
    for name in ("ann.csv.gz", "dr.smith.csv.gz", "carl.CSV", "ward.3.csv", "notes.TXT"):
        table.to_csv(tmp_path / name, index=False, compression="gzip" if "gz" in name else None)
    assert list(client_files(tmp_path).names) == ["ann", "carl", "dr.smith", "ward.3"]
    frame().to_csv(tmp_path / "all.in.one.csv.gz", index=False)
    assert list(client_files(tmp_path / "all.in.one.csv.gz", client="who").names) == ["a", "b"]


def test_columns_with_numbers_as_names():
    data = client_files(frame().rename(columns={"age": 0, "y": 1}), client="who", label="1")
    assert data.columns == ("0",)
    assert [own["x"].tolist() for own in data.train] == [[[1.0], [4.0]], [[2.0], [3.0]]]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"y": [0, 1, 1, 10_000]}, {}, r"client_files\(classes=...\): got labels 0 to 10000"),
        ({}, {"classes": 0}, r"client_files\(classes=...\): got 0"),
        ({}, {"labels": 2}, r"client_files\(labels=...\): got 2"),
        ({}, {"drop": "who"}, r"client_files\(drop=...\): got 'who'"),
        ({}, {"label": "who"}, r"client_files\(label=...\): got 'who'"),
        ({}, {"categories": {"who": ["a", "b"]}}, r"client_files\(categories=...\): got 'who'"),
        ({}, {"categories": {"sex": ["f"]}}, r"categories=...\): none of the files .* 'sex'"),
        ({0: 1.0, "0": 2.0}, {}, "the heading '0' twice"),
    ],
)
def test_arguments_that_do_not_fit_a_frame_are_named(columns, options, message):
    table = frame()
    for name, values in columns.items():
        table[name] = values
    with pytest.raises(InvalidInput, match=message):
        client_files(table, client="who", **options)


def test_a_folder_of_zero_classes_is_refused(tmp_path):
    table(tmp_path / "north.csv", [(1.0, 0)], "age,y")
    with pytest.raises(InvalidInput, match=r"client_files\(classes=...\): got 0"):
        client_files(tmp_path, 0)


@pytest.mark.parametrize("form", ["frame", "csv", "parquet"])
@pytest.mark.parametrize("column", ["age", "y"])
def test_a_missing_cell_is_named_with_its_column_and_client(tmp_path, form, column):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    table = frame().astype({column: float})
    table.loc[2, column] = float("nan")
    source = tmp_path / f"all.{form}"
    if form == "csv":
        table.to_csv(source, index=False, na_rep="nan")
    elif form == "parquet":
        table.to_parquet(source, index=False)
    message = rf"'?nan'? in row 3 of the column '{column}', client 'b'; .*Fill the cell, or leave"
    with pytest.raises(DataError, match=message):
        client_files(table if form == "frame" else source, client="who")


def test_real_labels_are_those_of_a_regression(tmp_path):
    table = frame().assign(y=[0.0, 1.0, 0.5, 1.0])
    message = r"got 0.5 in row 3 of the column 'y', client 'b'; .*fedax.tasks.from_loss takes real"
    with pytest.raises(DataError, match=message):
        client_files(table, client="who")
    whole = client_files(table.assign(y=[0.0, 1.0, 1.0, 0.0]), client="who")
    assert [own["y"].tolist() for own in whole.train] == [[0, 0], [1, 1]]


@pytest.mark.parametrize("label", ["y", " y "])
def test_headings_and_texts_count_without_spaces_and_in_one_form_of_accents(tmp_path, label):
    (tmp_path / "a.csv").write_text("gr\u00f6\u00dfe, farbe, y\n1,caf\u00e9 ,0\n", "utf-8")
    (tmp_path / "b.csv").write_text("farbe,y,gro\u0308\u00dfe \nred,1,2\n", "utf-8")
    texts = {"farbe": ["red ", "cafe\u0301"]}
    data = client_files(tmp_path, label=label, categories=texts)
    assert data.columns == ("gr\u00f6\u00dfe", "farbe")
    assert [own["x"].tolist() for own in data.train] == [[[1.0, 1.0]], [[2.0, 0.0]]]
    assert data.categories == {"farbe": ("red", "cafe\u0301")}
    with pytest.raises(InvalidInput, match="a list of different texts"):
        client_files(tmp_path, categories={"farbe": ["red ", "red"]})


def test_a_column_that_floats_cannot_tell_apart_is_warned_of(tmp_path, recwarn):
    rows = "\n".join(f"{1_700_000_000 + 7 * i},{i / 7},{i % 2}" for i in range(9))
    (tmp_path / "a.csv").write_text(f"time,h,y\n{rows}\n")
    message = r"9 different values of the column 'time', up to 1700000056, become . in float32"
    with jax.enable_x64(False):
        with pytest.warns(UserWarning, match=message):
            client_files(tmp_path)
        recwarn.clear()
        client_files(tmp_path, drop="time")
    client_files(tmp_path)
    assert not recwarn.list


def test_all_parts_of_a_folder_are_read_and_the_rest_is_named(tmp_path, recwarn):
    head, rows = "h,y\n", ["1,0\n", "2,1\n3,0\n", "4,1\n"]
    for part, text in zip(("train", "validation", "test"), rows, strict=True):
        (tmp_path / part).mkdir()
        (tmp_path / part / "ann.csv").write_text(head + text)
    (tmp_path / "train" / "bob.csv").write_text(head + rows[0])
    data = client_files(tmp_path)
    assert not recwarn.list
    assert [own["x"].tolist() for own in data.validation] == [[[2.0], [3.0]], []]
    assert (data.sizes.tolist(), data.test_sizes.tolist()) == ([1, 1], [1, 0])
    (tmp_path / "carl.csv").write_text(head + rows[0])
    (tmp_path / "valid").mkdir()
    (tmp_path / "valid" / "ann.csv").write_text(head + rows[0])
    with pytest.warns(UserWarning, match=r"not read in .*: carl.csv, valid/"):
        client_files(tmp_path)
    (tmp_path / "validation" / "dora.csv").write_text(head + rows[0])
    with pytest.raises(DataError, match="a validation part of 'dora'"):
        client_files(tmp_path)


def test_a_path_may_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "clients").mkdir()
    frame().drop(columns="who").to_csv(tmp_path / "clients" / "ann.csv", index=False)
    frame().to_csv(tmp_path / "all.csv", index=False)
    assert list(client_files("~/clients").names) == ["ann"]
    assert list(client_files("~/all.csv", client="who").names) == ["a", "b"]
