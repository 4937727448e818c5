"""Tables of a page in frames that scroll, or as cards on a phone."""

import itertools
import re

WORDY = 14
"""Characters in a cell, on average, from which a table holds sentences rather than numbers."""


def framed_table(table: str) -> str:
    """Returns a table in a frame that scrolls.

    Tables of sentences become cards on a phone, for which each cell gets the head of its column.
    There a deviation stays on the line of its mean.
    """
    table = re.sub(r"[\d.,+-]+ ± [\d.,]+", r'<span class="whole">\g<0></span>', table)

    def text(cell: str) -> str:
        return re.sub(r"<[^>]+>", "", cell).strip()

    heads = [text(cell) for cell in re.findall(r"<th[^>]*>(.*?)</th>", table, flags=re.DOTALL)]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table, flags=re.DOTALL)
    words = sum(len(text(cell)) for cell in cells) / max(len(cells), 1)
    if len(heads) < 2 or words < WORDY or len(cells) % len(heads):
        return f'<div class="wide" tabindex="0">{table}</div>'
    number = itertools.count()

    def headed(match: re.Match[str]) -> str:
        head = heads[next(number) % len(heads)].replace('"', "&quot;")
        return f'{match[0][:-1]} data-head="{head}">' if head else match[0]

    return f'<div class="wide stacked">{re.sub("<td[^>]*>", headed, table)}</div>'
