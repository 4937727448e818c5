"""Tables of the command line."""

from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segments
from rich.table import Table

MOST = 2_000
"""Letters of a line, at most."""


def show(table: Table, console: Console) -> None:
    """Prints a table with whole cells; the terminal breaks lines that are longer than it is wide.

    >>> import io
    >>> from rich.console import Console
    >>> narrow, table = Console(width=20, file=io.StringIO()), Table(box=None, pad_edge=False)
    >>> for title in ("graph", "bits"):
    ...     table.add_column(title)
    >>> table.add_row("random_regular(4)", "1,019,955,200")
    >>> show(table, narrow)
    >>> print(narrow.file.getvalue().splitlines()[1].rstrip())
    random_regular(4)  1,019,955,200
    """
    options = console.options.update(max_width=MOST)
    # the width that the table would like to have
    width = max(Measurement.get(console, options, table).maximum, 1)
    lines = Segments(console.render(table, options.update(width=width)))
    # neither cut nor wrapped at the terminal's width
    console.print(lines, crop=False, soft_wrap=True, end="")
