"""What a page becomes in HTML: formulas as MathML, and tables that a phone can show."""

import html
import itertools
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
UNKNOWN = {r"\\arg(?![a-z])": r"\\operatorname{arg}", r"\\[lr]Vert(?![a-z])": r"\\|"}
"""Commands that the converter does not know, and others with the same look."""
LONG = 50
"""Characters from which a formula within a line scrolls on a phone."""
WORDY = 14
"""Characters in a cell, on average, from which a table holds sentences rather than numbers."""


def render_formulas(page: str) -> str:
    """Returns a page with its formulas as MathML, so that no script and no font is loaded."""

    def render(match: re.Match[str]) -> str:
        tag = match[1]
        bracket = match[2]
        tex = html.unescape(match[3]).strip()
        for command, other in UNKNOWN.items():
            tex = re.sub(command, other, tex)
        # parts of a displayed formula may stand below each other
        parts = tex.split(r"\qquad") if bracket == "[" else [tex]
        display = "block" if bracket == "[" else "inline"
        made = "".join(convert(part, display=display) for part in parts if part.strip())
        if re.search(r"<m\w+>\\[^<]*</m", made):
            raise ValueError(f"a formula has an unknown command: {tex}")
        kind = "formula long" if bracket == "(" and len(tex) > LONG else "formula"
        return f'<{tag} class="{kind}" data-search-exclude>{made}</{tag}>'

    return FORMULA.sub(render, page)


def frame_tables(page: str) -> str:
    """Returns a page with tables in frames that scroll; one of sentences becomes cards on a phone,
    for which each cell gets the head of its column."""

    def frame(match: re.Match[str]) -> str:
        table = match[0]
        heads = re.findall(r"<th\b[^>]*>(.*?)</th>", table)
        words = re.sub(r"<[^>]+>|\s+", "", table.partition("<tbody>")[2])
        if len(words) < WORDY * table.count("<td"):
            return f'<div class="wide" tabindex="0">{table}</div>'
        head = itertools.cycle(heads)
        cells = re.sub("<td", lambda _: f'<td data-head="{next(head)}"', table)
        return f'<div class="wide stacked">{cells}</div>'

    return re.sub(r"<table>.*?</table>", frame, page, flags=re.DOTALL)
