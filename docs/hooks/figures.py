"""Pictures that are drawn from what the project declares."""

import tomllib
from pathlib import Path

WIDTH, HEIGHT, GAP = 640, 46, 16


def layers(root: Path) -> str:
    """The contract of imports as SVG: each layer may import those below it, and nothing else."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    rows = [
        [name.strip().removeprefix("fedax.") for name in layer.split("|")]
        for layer in contracts[0]["layers"]
    ]
    height = len(rows) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="sans-serif" font-size="15">',
        "<title>Layers of imports</title>",
    ]
    for i, names in enumerate(rows):
        y, width = i * (HEIGHT + GAP), (WIDTH - 8 * (len(names) - 1)) / len(names)
        for j, name in enumerate(names):
            x = j * (width + 8)
            parts.append(
                f'<rect x="{x + 1:.0f}" y="{y + 1}" width="{width - 2:.0f}" height="{HEIGHT}" '
                'rx="6" fill="#2f6f8f"/>'
            )
            middle = f'x="{x + width / 2:.0f}" y="{y + HEIGHT / 2 + 6:.0f}"'
            parts.append(f'<text {middle} text-anchor="middle" fill="#ffffff">{name}</text>')
        if i + 1 < len(rows):
            parts.append(
                f'<path d="M{WIDTH / 2} {y + HEIGHT + 4} v8 m-4 -5 l4 5 l4 -5" stroke="#8a8f98" '
                'stroke-width="2" fill="none"/>'
            )
    return "\n".join([*parts, "</svg>"])
