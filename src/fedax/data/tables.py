"""Clients' examples from tables: frames of pandas, CSV and Parquet files, other libraries' tables.

pandas reads tables. This module makes clients of their rows, and one encoding for all of them.
"""

import dataclasses
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict
from typing_extensions import TypedDict

from fedax.core import DataError, InvalidInput, UnknownName
from fedax.data.options import Seed, Share, Split, validated
from fedax.data.partition import partition_by
from fedax.data.partition.sizes import named_users
from fedax.examples.client_names import ClientNames, natural
from fedax.examples.encoding import Encoding, cell_text, find_column, normalize
from fedax.examples.federated import FederatedData, read_partition
from fedax.examples.overlap import draw_rows
from fedax.examples.ragged import Ragged

ENDING = re.compile(r"\.(csv|csv\.gz|parquet)$", re.IGNORECASE)
MOST_TEXTS = 100
"""A column of more texts is taken for names or notes, unless it is named as categories."""
MOST_LABELS = 10_000
"""Of labels that are numbers, without `classes`; more look like ids."""
PARTS = ("train", "test")
OWNER = "client of the table"
"""The column of clients where each has a table."""


class Columns(TypedDict, total=False):
    """What is done with the columns of a table's features.

    Keys:
        x: the columns of the features; by default all but those of labels and clients.
        drop: columns that are no features, such as ids.
        categories: columns that are categories although they have numbers, or more than 100 texts.
        standardize: whether columns of numbers are scaled, see `from_table`, true by default; or
            the means and the standard deviations of all of them by name, `({"age": 40}, {"age":
            12})`. A run with privacy takes only given numbers, because others are computed from all
            rows.
        missing: `"drop"` leaves rows with missing cells out. `"mean"` puts the mean for a missing
            number, and no category for a missing text. By default missing cells are refused.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    x: str | Sequence[str]
    drop: str | Sequence[str]
    categories: str | Sequence[str]
    standardize: Any
    missing: Literal["drop", "mean"]


@validated
def from_table(
    table: Any,
    *,
    y: str | None = "y",
    columns: Columns = {},  # noqa: B006 (nothing writes into it)
    client: str | None = None,
    partition: Any = None,
    seed: Seed = 0,
    test: Any = None,
    central: Any = None,
    test_fraction: Share = 0.0,
    split: Split = "shuffled",
    classes: Any = None,
    **options: Any,
) -> FederatedData:
    r"""Makes federated data from tables, with one encoding for all clients.

    Columns of numbers become $(v - m) / s$ with the mean $m$ and the standard deviation $s$ of all
    clients' training rows, also of those that become validation examples or unseen clients later.
    Columns of text are categories, with a feature of 0 or 1 for each of
    their texts in ascending order. All clients, test files and tables to predict for are read by
    this `encoding` of the data, by the names of columns and never by their order.

    pandas reads files, and takes empty cells, NA, NaN, null and the like for missing ones. A first
    column without a heading and the index of a Parquet file are left out.

    Args:
        table: a frame of pandas, a path of a `.csv`, `.csv.gz` or `.parquet` file, or anything with
            `to_pandas`, such as a table of Hugging Face's `datasets`. Or one of these for each
            client: a mapping by the clients' names; or files that are named as their clients, a
            list of paths or a folder.
        y: the column of the labels, None if there are none.
        columns: what is done with those of the features, such as `{"drop": "id", "missing":
            "mean"}`; see `fedax.data.Columns`.
        client: the column that says whose a row is.
        partition: of a table without such a column: a name of `fedax.data.partition`, or the rows
            of each client.
        seed: of the partition and of the draw of test examples.
        test: test examples of the clients, in the form of `table`.
        central: a table of examples that belong to no client.
        test_fraction: share of each client's examples that is kept for testing, in [0, 1).
        split: `"shuffled"` draws them without copies of training examples among them, `"in_order"`
            takes the last ones.
        classes: the labels in the order of their classes, such as `["healthy", "ill"]`; or how many
            classes there are, where labels are numbers from 0 on; or 0 for real labels, of a
            regression. By default texts in ascending order, or the numbers from 0 to the largest.
        options: of the named partition, such as how many `clients` it makes; with `client`,
            `minimum`: clients with fewer examples are left out.

    Raises:
        DataError: a file that pandas cannot read, a heading twice, missing columns or cells, cells
            that do not fit their column, a first column that numbers the rows, or what
            `FederatedData` refuses. Parquet needs the extra `parquet`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame(
        ...     {
        ...         "ward": ["north", "north", "east", "east"],
        ...         "age": [30, 50, 40, 40],
        ...         "sex": ["f", "m", "m", "f"],
        ...         "y": ["well", "ill", "ill", "well"],
        ...     }
        ... )
        >>> data = from_table(frame, client="ward")
        >>> list(data.names), data.encoding.labels, data.train[1]["x"].round(2).tolist()
        (['east', 'north'], ['ill', 'well'], [[-1.41, 1.0, 0.0], [1.41, 0.0, 1.0]])
    """
    x, drop, categories = (_names(columns.get(key)) for key in ("x", "drop", "categories"))
    as_text = [*_names(client), *categories]
    sources = {"train": table, "test": test, "central": central}
    frames = {
        part: _read_clients(source, as_text)
        for part, source in sources.items()
        if source is not None
    }
    # the columns of clients, of labels and of features
    headings = list(frames["train"])
    client = OWNER if OWNER in headings else client and normalize(client)
    if (client is None) == (partition is None):
        hint = "Name the column that says whose a row is, client=..., or else a partition=..."
        raise DataError.found("from_table", "one table", "a table for each client", hint)
    others = [*_names(client), *_names(y)]
    features = x or [key for key in headings if key not in {*others, *drop}]
    chosen = {"x": x, "drop": drop, "y": y, "client": client, "categories": categories}
    for option, names in chosen.items():
        for name in _names(names):
            if name not in headings or (option == "x" and name in others):
                raise UnknownName.among(f"from_table({option}=...)", name, headings)
    if not features:
        raise DataError.found(
            "from_table", f"only the columns {headings}", "at least one column of features"
        )
    first = frames["train"][features[0]]
    # of each file: rows are counted as their lines
    rows_read = first.index.get_level_values(-1)
    counts = [(rows_read - rows_read.min() + start).tolist() for start in (0, 1)]
    if not x and len(first) >= 10 and first.tolist() in counts:
        hint = f"Leave it out, columns={{'drop': {first.name!r}}}, or name the features by 'x'."
        got = f"the column {first.name!r}, which numbers the rows"
        raise DataError.found("from_table", got, "columns of features", hint)
    encoding = _fit(list(frames.values()), features, y, classes, categories, columns.get("missing"))
    if columns.get("missing") == "drop":
        if client is None and not isinstance(partition, str):
            raise DataError.because(
                "from_table(partition=...)",
                "'drop' changes the numbers of the rows, leave them out of the table first",
            )
        needed = {*others, *features}
        frames = {
            part: frame.dropna(subset=list(needed & {*frame})) for part, frame in frames.items()
        }
    train = frames["train"]
    # the rows of each client
    names: list[str] = []
    if client is not None:
        rows_by_name = named_users(train[client], where=f"column {client!r}", **options)
        names = list(rows_by_name)
        rows = list(rows_by_name.values())
    elif isinstance(partition, str):
        labels = encoding.apply(train).get("y", np.zeros(len(train)))
        rows = partition_by(partition, labels, seed=seed, **options)
    else:
        rows = list(partition)
    order, sizes = read_partition(rows, len(train), "from_table(partition=...)")
    used: dict[str, tuple[Any, Sequence[Any]]] = {"train": (train, rows)}
    if test_fraction:
        offsets = np.cumsum([0, *sizes])
        divided = draw_rows(encoding.apply(train.iloc[order]), offsets, test_fraction, seed, split)
        used = {part: (train, [order[own] for own in divided[k]]) for k, part in enumerate(PARTS)}
    given = columns.get("standardize", True)
    encoding = _standardize(encoding, train.iloc[np.concatenate(used["train"][1])], given)
    if test is not None:
        test_rows = named_users(
            find_column(frames["test"], str(client)), where=f"column {client!r}"
        )
        if test_fraction or not set(test_rows) <= set(names):
            allowed = f"clients of the training part, {names}, and no test_fraction"
            raise DataError.of("from_table(test=...)", list(test_rows), allowed)
        used["test"] = (frames["test"], [test_rows.get(name, []) for name in names])
    parts: dict[str, Any] = {}
    for part, (frame, rows) in used.items():
        arrays = encoding.apply(frame.iloc[np.concatenate(rows).astype(int)])
        parts[part] = Ragged.flat(arrays, [len(own) for own in rows], part)
    if central is not None:
        parts["central"] = encoding.apply(frames["central"])
    return FederatedData(
        **parts,
        classes=encoding.classes,
        name="table",
        names=names or None,
        labels=encoding.labels or (),
        encoding=encoding,
        measured=given is True or (given is False and encoding.missing == "mean"),
    )


def read_table(table: Any, as_text: Iterable[str] = (), *, verbatim: bool = False) -> Any:
    """Returns a table as a frame of pandas; headings are text without outer spaces.

    Args:
        table: a frame, the path of a file, or anything with `to_pandas`.
        as_text: columns of a CSV file whose cells stay as they are written, such as 007.
        verbatim: whether all cells of one do, also NA and the like, which are missing otherwise.

    Raises:
        DataError: a file that pandas cannot read, or a heading twice.
    """
    begin = 0
    if isinstance(table, str | Path):
        # a file's rows are called by their lines, the first of which has the headings
        begin = 2
        types = str if verbatim else dict.fromkeys(as_text, str)
        frame = _read_file(Path(table).expanduser(), types, not verbatim)
    else:
        frame = table.to_pandas() if hasattr(table, "to_pandas") else table
    if not hasattr(frame, "set_axis"):
        raise DataError.of("from_table(table=...)", table, "a frame, or the path of a file")
    frame = frame.set_axis(map(normalize, frame.columns), axis=1)
    # as texts, for tables with other categories would make one column of numbers with these
    for name in frame.select_dtypes("category"):
        frame[name] = frame[name].cat.rename_categories(cell_text)
    # pandas and R write the numbers of rows into a first column without a heading
    if frame.columns[:1].isin(["", "Unnamed: 0"]).any():
        frame = frame.iloc[:, 1:]
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError.found("table", f"the heading {twice!r} twice", "different headings")
    return frame.set_axis(range(begin, begin + len(frame)))


def _read_file(path: Path, types: Any, has_missing: bool) -> Any:
    import pandas as pd

    try:
        with warnings.catch_warnings():
            # of rows that are longer than the headings
            warnings.simplefilter("error", pd.errors.ParserWarning)
            if path.suffix.lower() == ".parquet":
                return pd.read_parquet(path)
            # pandas would change headings that are there twice
            first = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
            return pd.read_csv(
                path,
                names=first.iloc[0].map(normalize),
                header=0,
                index_col=False,
                dtype=types,
                keep_default_na=has_missing,
                low_memory=False,
                skipinitialspace=True,
            )
    except Exception as error:  # of pandas and what it reads with
        raise DataError.because(str(path), f"cannot be read: {error}") from error


def _read_clients(source: Any, as_text: Iterable[str]) -> Any:
    """Returns one table; or those of all clients below each other, with a column of clients."""
    import pandas as pd

    if isinstance(source, str | Path) and (folder := Path(source).expanduser()).is_dir():
        source = [path for path in sorted(folder.iterdir()) if ENDING.search(path.name)]
    if isinstance(source, list | tuple):
        names = [ENDING.sub("", Path(path).name) for path in source]
        source = dict(zip(ClientNames(names, "from_table(table=...)"), source))
    if not isinstance(source, Mapping):
        return read_table(source, as_text)
    where = "from_table(table=...)"
    if not source:
        raise DataError.found(where, "no table", "a .csv or .parquet file for each client")
    if "train" in source:
        hint = "Write from_table(table['train'], central=table['test'])."
        raise DataError.found(where, "several splits", "one table", hint)
    frames = {name: read_table(table, as_text) for name, table in source.items()}
    first = next(iter(frames.values()))
    for name, frame in frames.items():
        if set(frame) != set(first) or not len(frame):
            raise DataError.found(
                f"table of {name!r}",
                f"{len(frame)} rows of {list(frame)}",
                f"rows of {list(first)}, as the first client has",
            )
    return pd.concat({name: frame.assign(**{OWNER: name}) for name, frame in frames.items()})


def _names(columns: Any) -> list[str]:
    """Returns the names of columns that are given as a list, as one name or as None."""
    columns = [columns] if isinstance(columns, str) else columns or ()
    return [normalize(name) for name in columns]


def _fit(
    frames: Sequence[Any],
    columns: Sequence[str],
    y: str | None,
    classes: Any,
    categories: Sequence[str],
    missing: str | None,
) -> Encoding:
    """Returns the encoding of all rows, without means and deviations."""
    import pandas as pd

    frame: Any = pd.concat(frames)
    # without truth values, which are texts
    numbers = frame.select_dtypes("number").columns
    texts = {}
    for name in columns:
        is_declared = name in categories or frame[name].dtype.name == "category"
        if name in numbers and not is_declared:
            continue
        texts[name] = _texts_of(frame[name])
        # numbers with commas, 1,5 or 1,500, are numbers too
        plain = [text.replace(",", "") for text in texts[name]]
        parsed = pd.to_numeric(np.array(plain, object), errors="coerce")
        is_doubtful = np.isfinite(parsed).any() or len(texts[name]) > MOST_TEXTS
        if not texts[name] or (is_doubtful and not is_declared):
            raise DataError.found(
                f"column {name!r}",
                f"{len(texts[name])} texts, such as {texts[name][:1] + texts[name][-1:]}",
                f"numbers alone, or 1 to {MOST_TEXTS} texts that are no numbers",
                f"Strip units, or columns={{'drop': {name!r}}}, or name it in 'categories'.",
            )
    missing_counts = frame[columns].isna().sum()
    missing_cells = missing_counts[missing_counts > 0].to_dict()
    y = y and normalize(y)
    labels = None
    if y is None:
        classes = None
    elif classes is None and y in numbers:
        low = frame[y].min()
        high = frame[y].max()
        if low != 0 or high >= MOST_LABELS:
            allowed = f"labels from 0 to less than {MOST_LABELS}"
            hint = "Name them in order, classes=[...]. Real ones: classes=0, fedax.from_model."
            got = f"labels from {low:g} to {high:g}"
            raise DataError.found("from_table(classes=...)", got, allowed, hint)
        classes = int(high) + 1
    elif not isinstance(classes, int):
        labels = _texts_of(frame[y]) if classes is None else [str(cell_text(c)) for c in classes]
        classes = len(labels)
    return Encoding(
        columns,
        texts,
        y=y,
        labels=labels,
        classes=classes or None,
        missing=missing,
        missing_cells=missing_cells,
    )


def _texts_of(cells: Any) -> list[str]:
    """Returns the texts of cells in ascending order."""
    return sorted({text for text in map(cell_text, cells) if text is not None}, key=natural)


def _standardize(encoding: Encoding, train: Any, given: Any) -> Encoding:
    """Returns the encoding with means and deviations: those given, or those of training rows."""
    values = train[[name for name in encoding.columns if name not in encoding.categories]]
    # infinite numbers are refused where they are encoded
    values = values.astype(float).replace([np.inf, -np.inf], np.nan)
    means = values.mean().to_dict()
    with np.errstate(over="ignore"):
        # equal numbers become 0
        deviations = values.std(ddof=0).where(values.nunique() > 1, 1.0).to_dict()
    if given is False:
        return dataclasses.replace(encoding, means=means)
    if given is not True:
        means, deviations = given
    is_positive = all(0 < deviation < np.inf for deviation in deviations.values())
    if not is_positive or not means.keys() == deviations.keys() == set(values):
        raise InvalidInput.of(
            "from_table(standardize=...)",
            (means, deviations),
            f"means, and finite deviations above 0, of {list(values)} by name",
        )
    return dataclasses.replace(encoding, means=means, deviations=deviations)
