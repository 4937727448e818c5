"""`fedax clock`: devices of the virtual clock, from what a deployment has measured."""

from pathlib import Path
from typing import Annotated

import typer

from fedax.cli.command import Command

app = typer.Typer(no_args_is_help=True, help="Fit the virtual clock to measured durations.")


@app.callback()
def clock() -> None:
    """Fit the virtual clock to measured durations."""


@app.command(cls=Command)
def fit(
    run: Annotated[
        Path,
        typer.Argument(
            help="Run directory of a deployment, or its record of durations.", metavar="RUN"
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Table to write.  [default: devices.csv beside it]", show_default=False),
    ] = None,
) -> None:
    """Estimate each client's speed, bandwidths and latency, and write them as a table.

    `fedax.Devices(table=...)` and `[devices] table = ...` read the table.

    Example: `fedax clock fit site/runs/digits`
    """
    import numpy as np

    from fedax.engine.round.timing.fitting import DURATIONS, fit_devices, read_durations

    record = run / DURATIONS if run.is_dir() else run
    fitted = fit_devices(read_durations(record), str(record))
    # beside the record, which may lie in the run directory
    path = record.with_name("devices.csv") if out is None else out
    fitted.write(path)
    # relative errors of the rounds' durations
    median, high = np.quantile(fitted.errors, [0.5, 0.9])
    typer.echo(
        f"{len(fitted.clients)} clients, {len(fitted.errors)} rounds. Error of the predicted times "
        f"of rounds: median {median:.1%}, 90th percentile {high:.1%}."
    )
    if fitted.passed_over:
        typer.echo(
            f"{fitted.passed_over} rows of compute without a number of examples were passed over. "
            "Neither the fit nor its error has them."
        )
    if fitted.merged:
        first_clients = ", ".join(fitted.merged[:3]) + (", ..." if len(fitted.merged) > 3 else "")
        typer.echo(
            f"Messages of one size do not tell latency from bandwidth. The bandwidth includes it "
            f"for {len(fitted.merged)} clients: {first_clients}."
        )
    typer.echo(f"Table: {path}")
