"""A picture of federated data: clients' sizes and label histograms."""

from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import InvalidInput
from fedax.data import FederatedData


def picture(federated: FederatedData) -> Any:
    """Draws bars of the clients' sizes above the shares of the labels in each client; clients from
    the largest to the smallest.

    Returns:
        A Plotly figure.

    >>> from fedax.data import digits
    >>> [trace.type for trace in picture(digits(clients=3)).data]
    ['bar', 'bar', 'heatmap']
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    # stable, so that clients of equal size keep their order
    order = np.argsort(-(federated.sizes + federated.test_sizes), kind="stable")
    # shape (clients, labels)
    counts = federated.label_counts[order]
    shares = counts / counts.sum(axis=1, keepdims=True)
    ranks, names = np.arange(len(order)), [f"client {client}" for client in order.tolist()]
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.4, 0.6]
    )
    splits = {"train": (federated.sizes, "#2a6fbb"), "test": (federated.test_sizes, "#e08a2c")}
    for split, (sizes, colour) in splits.items():
        if sizes.any():
            bars = go.Bar(
                x=ranks, y=sizes[order], name=split, customdata=names, marker_color=colour
            )
            figure.add_trace(
                bars.update(hovertemplate="%{customdata}: %{y} " + split + "<extra></extra>"),
                row=1,
                col=1,
            )
    label = "%{customdata}, label %{y}: %{text} examples, %{z:.1%}<extra></extra>"
    heat = go.Heatmap(
        x=ranks,
        y=np.arange(counts.shape[1]),
        # rows of the picture are labels, columns are clients
        z=shares.T,
        text=counts.T,
        customdata=np.tile(names, (counts.shape[1], 1)),
        hovertemplate=label,
        colorscale="Blues",
        zmin=0,
        zmax=1,
        colorbar={"title": "share of<br>the client", "tickformat": ".0%", "len": 0.55, "y": 0.28},
    )
    figure.add_trace(heat, row=2, col=1)
    title = (
        f"{federated.name}: {federated.clients} clients, {int(federated.sizes.sum()):,} "
        "training examples"
    )
    figure.update_layout(
        title=title,
        barmode="stack",
        template="plotly_white",
        legend={"orientation": "h", "y": 1.06},
    )
    figure.update_yaxes(title="examples", row=1, col=1)
    figure.update_yaxes(title="label", row=2, col=1)
    figure.update_xaxes(title="clients, from the largest", row=2, col=1)
    return figure


def draw(federated: FederatedData, path: Path) -> None:
    """Writes the picture to a file: `.html` is one page that needs no network, `.png` needs
    `pip install kaleido`.

    Raises:
        InvalidInput: another ending, or a PNG without what draws it.
    """
    if path.suffix not in (".html", ".png"):
        raise InvalidInput.of("picture", str(path), "a file that ends in .html or .png")
    figure = picture(federated)
    if path.suffix == ".html":
        content = figure.to_html(include_plotlyjs=True, full_html=True).encode()
    else:
        try:
            content = figure.to_image(format="png", width=1100, height=800, scale=2)
        except Exception as error:
            # kaleido is missing, or finds no browser; it raises errors of many kinds
            reason = str(error).strip().partition("\n")[0]
            hint = "Run pip install kaleido, or write an .html file."
            raise InvalidInput.of(
                "picture", str(path), f"a .png file where kaleido can draw it ({reason})", hint
            ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
