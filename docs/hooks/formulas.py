"""Formulas as MathML, made when the site is built: no script and no font has to be loaded."""

import html
import re

from latex2mathml.converter import convert

LONG = 50
"""Characters from which a formula within a line scrolls on a phone."""
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def as_mathml(page: str) -> str:
    """A page with its marked formulas converted; they stay out of the search index."""

    def one(match: re.Match[str]) -> str:
        tag, bracket, tex = match.groups()
        tex = html.unescape(tex).strip()
        made = (
            "".join(_converted(part, "block") for part in parts(tex))
            if bracket == "["
            else _converted(tex, "inline")
        )
        kind = "formula long" if bracket == "(" and len(tex) > LONG else "formula"
        return f'<{tag} class="{kind}" data-search-exclude>{made}</{tag}>'

    return FORMULA.sub(one, page)


def parts(tex: str) -> list[str]:
    r"""A displayed formula in parts that may stand below each other on a narrow screen: at wide
    spaces outside of groups.

    >>> parts(r"a = b, \qquad c = {d \qquad e}")
    ['a = b,', 'c = {d \\qquad e}']
    """
    found, depth = [""], 0
    for piece in re.split(r"(\\qquad|\\begin|\\end|\\left|\\right|[{}])", tex):
        depth += {"{": 1, "}": -1, r"\begin": 1, r"\end": -1, r"\left": 1, r"\right": -1}.get(
            piece, 0
        )
        if piece == r"\qquad" and depth == 0:
            found.append("")
        else:
            found[-1] += piece
    return [part.strip() for part in found if part.strip()]


def _converted(tex: str, display: str) -> str:
    # commands that the converter does not know, by others with the same look
    for name, other in ((r"\arg", r"\operatorname{arg}"), (r"\lVert", r"\|"), (r"\rVert", r"\|")):
        tex = re.sub(re.escape(name) + r"(?![a-zA-Z])", lambda _, other=other: other, tex)
    made = convert(tex, display=display)
    if unknown := re.findall(r"<mi>\\[^<]*</mi>|<mo>\\[^<]*</mo>|<mtext>\\[^<]*</mtext>", made):
        raise ValueError(f"unknown in a formula: {unknown} in {tex}")
    return made
