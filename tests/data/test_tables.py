"""Clients from tables: one encoding by name for all clients, later files and predictions."""

import functools
import gzip

import numpy as np
import pandas as pd
import pytest

import fedax
from fedax.core import DataError, InvalidInput
from fedax.data import from_table
from fedax.data.tables import read_table
from fedax.examples.encoding import Encoding
from fedax.experiments.running.predictions import examples_of

ROWS = [("north", 30 + i, "fm"[i % 2], ("healthy", "ill")[i % 3 == 0]) for i in range(10)]
ROWS += [("east", 52 + i % 3, "m", "ill") for i in range(4)]
FRAME = pd.DataFrame(ROWS, columns=["ward", "age", "sex", "relapse"])
OPTIONS = {"client": "ward", "y": "relapse"}
pytestmark = pytest.mark.usefixtures("as_users_run")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def arrays_of(data):
    return [np.asarray(part.arrays[key]) for part in (data.train, data.test) for key in "xy"]


def csv_of(folder):
    FRAME.to_csv(folder / "all.csv", index=False)
    return folder / "all.csv"


def shuffled_csv_of(folder):
    """With other columns, their order, an index, a byte order mark, CRLF and compression."""
    text = FRAME[["relapse", "sex", "ward", "age"]].to_csv(lineterminator="\r\n")
    (folder / "all.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    return folder / "all.csv.gz"


def parquet_of(folder):
    pytest.importorskip("pyarrow")
    frame = FRAME.set_index(pd.Index(range(1000, 1028, 2), name="patient"))
    frame.to_parquet(folder / "all.parquet")
    return folder / "all.parquet"


def hub_table_of(folder):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_pandas(FRAME).save_to_disk(folder / "hub")
    return datasets.load_from_disk(str(folder / "hub"))


@pytest.mark.parametrize("form", [csv_of, shuffled_csv_of, parquet_of, hub_table_of])
def test_all_forms_of_a_table_give_the_same_examples(tmp_path, form):
    table = form(tmp_path)
    data = from_table(table, columns={"x": ["age", "sex"]}, **OPTIONS, test_fraction=0.3)
    same = from_table(FRAME, **OPTIONS, test_fraction=0.3)
    for values, expected in zip(arrays_of(data), arrays_of(same), strict=True):
        np.testing.assert_array_equal(values, expected)
    assert list(data.names) == ["east", "north"]
    assert (data.sizes.tolist(), data.test_sizes.tolist()) == ([2, 7], [2, 3])
    assert data.encoding == same.encoding


def test_a_folder_a_list_and_a_mapping_have_a_table_for_each_client(tmp_path):
    for k, (ward, frame) in enumerate(FRAME.drop(columns="ward").groupby(FRAME["ward"])):
        columns = list(frame)[::-1] if k else list(frame)
        frame[columns].to_csv(tmp_path / f"{ward}.csv", index=False)
    write(tmp_path / "notes.txt", "no table")
    expected = from_table(FRAME, **OPTIONS)
    tables = {ward: tmp_path / f"{ward}.csv" for ward in ("north", "east")}
    for source in (tmp_path, list(tables.values()), tables):
        data = from_table(source, y="relapse", columns={"x": ["age", "sex"]})
        assert list(data.names) == ["east", "north"]
        for mine, theirs in zip(data.train, expected.train, strict=True):
            np.testing.assert_array_equal(mine["y"], theirs["y"])
            np.testing.assert_allclose(mine["x"], theirs["x"], rtol=1e-6)


def test_numbers_are_standardized_over_all_training_rows_and_texts_are_one_hot():
    data = from_table(FRAME, **OPTIONS, test_fraction=0.3, split="in_order")
    train = pd.concat([FRAME[10:12], FRAME[:7]])["age"].to_numpy(float)
    mean = train.mean()
    deviation = train.std()
    np.testing.assert_allclose(data.encoding.means["age"], mean)
    np.testing.assert_allclose(data.encoding.deviations["age"], deviation)
    ages = np.concatenate([part.arrays["x"][:, 0] for part in (data.train, data.test)])
    rows = pd.concat([FRAME[10:12], FRAME[:7], FRAME[12:14], FRAME[7:10]])
    np.testing.assert_allclose(ages, (rows["age"] - mean) / deviation, rtol=1e-5)
    sexes = np.concatenate([part.arrays["x"][:, 1:] for part in (data.train, data.test)])
    np.testing.assert_array_equal(sexes, [[sex == "f", sex == "m"] for sex in rows["sex"]])
    assert data.encoding.labels == ["healthy", "ill"]


def test_means_and_deviations_may_be_given_or_left_out():
    plain = from_table(FRAME, **OPTIONS, columns={"standardize": False})
    np.testing.assert_array_equal(plain.train[1]["x"][:, 0], FRAME["age"][:10])
    given = from_table(FRAME, **OPTIONS, columns={"standardize": ({"age": 40.0}, {"age": 5.0})})
    np.testing.assert_allclose(given.train[1]["x"][:, 0], (FRAME["age"][:10] - 40) / 5)
    assert given.measured is plain.measured is False


def test_numbered_rows_do_not_go_with_rows_that_are_left_out():
    frame = pd.DataFrame({"a": [0.0, np.nan, 2.0, 3.0]})
    with pytest.raises(DataError, match="drop"):
        from_table(frame, y=None, partition=[[0, 1], [2, 3]], columns={"missing": "drop"})


def test_truth_values_are_the_same_in_training_and_prediction(tmp_path):
    path = write(tmp_path / "a.csv", "smoker,y\nTRUE,0\nfalse,1\n")
    data = from_table({"a": path})
    assert (examples_of(path, data.encoding).arrays["x"] == data.train[0]["x"]).all()


def test_large_numbers_are_told_apart():
    """Standardized in double precision: single precision would make times of a day equal."""
    frame = pd.DataFrame({"time": 1_700_000_000 + 7 * (np.arange(9) % 5), "y": [0, 1, 0] * 3})
    data = from_table({"a": frame})
    assert len(np.unique(data.train.arrays["x"])) == 5


@pytest.mark.parametrize(
    ("rule", "sizes", "row"),
    [("drop", [1, 1], [1.0, 0.0, 1.0]), ("mean", [1, 2], [0.0, 0.0, 0.0])],
)
def test_missing_cells_follow_a_declared_rule(tmp_path, rule, sizes, row):
    text = "who,a,c,y\nann,1,u,0\nbob,NA,,1\nbob,3,v,1\n"
    path = write(tmp_path / "all.csv", text)
    data = from_table(path, client="who", columns={"missing": rule})
    assert data.sizes.tolist() == sizes
    assert data.train[1]["x"][0].tolist() == row

    frame = read_table(path)
    if rule == "mean":
        assert data.encoding.features(frame)[1].tolist() == [0.0, 0.0, 0.0]
    else:
        with pytest.raises(DataError, match=r"'a'.*row 3"):
            data.encoding.features(frame)


@pytest.mark.parametrize("form", ["frame", "csv"])
def test_later_tables_are_read_by_name_and_need_no_labels(tmp_path, form):
    task = fedax.classification(from_table(FRAME, **OPTIONS), fedax.models.Softmax(3, 2))
    history = fedax.run(fedax.FedAvg(), task, rounds=3, solver=fedax.SGD(0.5))
    expected = history.predict(
        from_table(
            {"a": FRAME.drop(columns="ward")},
            y="relapse",
            columns={"standardize": (task.data.encoding.means, task.data.encoding.deviations)},
        ).train.arrays["x"]
    )
    later = FRAME.assign(other="text")[["sex", "other", "age"]]
    if form == "csv":
        later.to_csv(tmp_path / "later.csv", index=False)
        later = read_table(tmp_path / "later.csv")
    np.testing.assert_allclose(history.predict(later), expected, rtol=1e-5)
    np.testing.assert_allclose(history.predict({"x": later}), expected, rtol=1e-5)
    for field, wrong in (("'age'", later.drop(columns="age")), ("'sex'", later.assign(sex="x"))):
        with pytest.raises(DataError, match=field):
            history.predict(wrong)


def test_an_encoding_comes_back_from_json():
    encoding = from_table(FRAME, **OPTIONS).encoding
    again = Encoding.from_json(encoding.to_json())
    assert again == encoding
    np.testing.assert_array_equal(again.apply(FRAME)["x"], encoding.apply(FRAME)["x"])


def test_test_and_central_tables_share_the_encoding():
    train = FRAME[FRAME["sex"] == "f"]
    other = FRAME[FRAME["sex"] == "m"]
    train = pd.concat([train, FRAME[10:11].assign(sex="f")])
    data = from_table(train, **OPTIONS, test=other, central=other.drop(columns="ward"))
    assert data.train.arrays["x"].shape[1] == 3
    np.testing.assert_array_equal(data.central["x"][:, 1:], [[0, 1]] * len(other))
    assert data.test_sizes.tolist() == [4, 5]
    assert data.test[1]["y"].tolist() == [0, 1, 0, 0, 1]
    with pytest.raises(DataError, match="the column 'ward' is missing"):
        from_table(train, **OPTIONS, test=other.drop(columns="ward"))


@pytest.mark.parametrize("partition", ["iid", "dirichlet", [[0, 3, 5], [1, 2]]])
def test_a_table_without_clients_is_dealt_out(partition):
    options = {"alpha": 5.0, "minimum": 1} if partition == "dirichlet" else {}
    frame = FRAME.drop(columns="ward")
    data = from_table(frame, y="relapse", partition=partition, clients=2, **options)
    assert data.sizes.sum() == (5 if isinstance(partition, list) else len(frame))
    if isinstance(partition, list):
        ages = frame["age"].to_numpy()[np.concatenate(partition)]
        np.testing.assert_allclose(
            data.train.arrays["x"][:, 0], (ages - ages.mean()) / ages.std(), rtol=1e-5
        )


def test_tables_without_labels_have_features_alone():
    data = from_table(FRAME.drop(columns="relapse"), client="ward", y=None)
    assert list(data.train.arrays) == ["x"]
    assert data.classes is data.encoding.y is None
    assert list(data.encoding.apply(FRAME)) == ["x"]


@pytest.mark.parametrize(
    ("classes", "labels", "expected"),
    [
        (None, ["ill", "healthy", "ill"], [1, 0, 1]),
        (["ill", "healthy"], ["ill", "healthy", "ill"], [0, 1, 0]),
        (None, [0, 2, 1], [0, 2, 1]),
        (5, [0, 2, 1], [0, 2, 1]),
        ([1, 2], [1, 2, 1], [0, 1, 0]),
        ([-1, 1], [1.0, -1.0, 1.0], [1, 0, 1]),
        (0, [0.5, 2, 1], [0.5, 2, 1]),
    ],
)
def test_labels_are_texts_numbers_of_classes_or_real(classes, labels, expected):
    data = from_table({"a": pd.DataFrame({"q": [1.0, 5.0, 2.0], "y": labels})}, classes=classes)
    assert data.train.arrays["y"].tolist() == expected
    told = classes or None if isinstance(classes, int) else max(expected) + 1
    assert data.classes == told


def test_a_column_that_numbers_the_rows_is_no_feature():
    name = "...1"
    frame = FRAME.drop(columns="ward")
    frame.insert(0, name, np.arange(len(frame)) + 1)
    with pytest.raises(DataError, match=rf"'{name}'.*drop"):
        from_table(frame, y="relapse", partition="iid", clients=2)
    assert name in from_table(frame[::-1], y="relapse", partition="iid", clients=2).encoding.columns


@pytest.mark.parametrize("heading", ["", "Unnamed: 0"])
def test_the_index_of_a_saved_frame_is_no_feature(tmp_path, heading):
    FRAME.to_csv(tmp_path / "all.csv", index_label=heading)
    assert from_table(tmp_path / "all.csv", **OPTIONS).encoding.columns == ["age", "sex"]


def test_texts_that_are_names_are_refused_or_declared():
    names = FRAME.assign(note=[f"patient {k}" for k in range(len(FRAME))])
    many = pd.concat([names.assign(note=names["note"] + f"-{k}") for k in range(9)])
    with pytest.raises(DataError, match=r"'note'.*categories"):
        from_table(many, **OPTIONS)
    data = from_table(many, **OPTIONS, columns={"categories": "note"})
    assert len(data.encoding.categories["note"]) == 126


def test_numbers_may_be_categories_and_names_keep_their_zeros(tmp_path):
    path = write(tmp_path / "all.csv", "who ,zip ,y\n007,01,0\n7,1,1\n7,01,0\n")
    data = from_table(path, client="who", columns={"categories": ["zip"]})
    assert list(data.names) == ["007", "7"]
    assert data.encoding.categories == {"zip": ["01", "1"]}
    assert data.train[1]["x"].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    later = read_table(write(tmp_path / "new.csv", "zip\n1\n01\n"), data.encoding.categories)
    assert data.encoding.features(later).tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_categories_of_single_tables_stay_categories():
    """Of tables with other categories, pandas makes one column of numbers."""
    tables = {
        name: pd.DataFrame({"code": pd.Categorical([code, 3]), "y": [0, 1]})
        for name, code in (("a", 1), ("b", 2))
    }
    data = from_table(tables, columns={"categories": ["code"]})
    assert data.encoding.categories == {"code": ["1", "2", "3"]}
    with pytest.raises(DataError, match="name it in 'categories'"):
        from_table(tables)


def test_accents_and_outer_spaces_make_no_other_name(tmp_path):
    write(tmp_path / "a.csv", "gr\u00f6\u00dfe, farbe, y\n1,caf\u00e9 ,0\n")
    write(tmp_path / "b.csv", "farbe,y,gro\u0308\u00dfe \nred,1,2\n")
    data = from_table(tmp_path, columns={"standardize": False})
    assert data.encoding.columns == ["gr\u00f6\u00dfe", "farbe"]
    assert data.train.arrays["x"].tolist() == [[1.0, 1.0, 0.0], [2.0, 0.0, 1.0]]


def test_measured_means_are_refused_with_privacy():
    """They tell about all rows, and the noise of the uploads does not cover them."""
    private = fedax.Channel(privacy=fedax.Privacy(clip=1.0, noise=1.0, delta=0.1))
    measured, given = [
        fedax.classification(from_table(FRAME, **OPTIONS, columns=columns), "softmax")
        for columns in ({}, {"standardize": ({"age": 40.0}, {"age": 10.0})})
    ]
    run = functools.partial(
        fedax.run, channel=private, schedule=fedax.Schedule(weights="equal"), rounds=1
    )
    for task in (measured, fedax.task("digits", normalize="dataset")):
        with pytest.raises(InvalidInput, match="standardize"):
            run(fedax.FedAvg(), task)
    run(fedax.FedAvg(), given)
