"""Code blocks of README and docs: what language each has, and why one does not run.

    python tests/blocks.py    # counts them, and lists those that do not run

A block that does not run stands behind `<!-- not run: reason -->`. A block whose first line is
`# name.ext` is a file, which later blocks of its page may use."""

import collections
import dataclasses
import re
import textwrap

from sources import ROOT, own_files

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "RELEASING.md",
    ROOT / "SECURITY.md",
    ROOT / "benchmarks" / "README.md",
    *own_files("docs", suffix=".md"),
]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.DOTALL | re.MULTILINE,
)
REASON = re.compile(r"<!-- not run: ([^>]+) -->\s*\Z")
OUTPUT = {"text", "bibtex", "nginx", "dockerfile"}
"""Languages of blocks that are shown and not executed: output of programs, files of others."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A code block; `number` counts those of its page from 0."""

    page: str
    number: int
    language: str
    text: str
    reason: str | None

    def __str__(self):
        return f"{self.page}-{self.number}"

    @property
    def file(self):
        """The name of the file that the block shows, or None."""
        match = re.match(r"# ([\w-]+\.(?:py|toml))\n", self.text)
        return match and match[1]


def blocks_of(text, page=""):
    """Returns the blocks of a page in order."""
    found = []
    for match in FENCE.finditer(text):
        reason = REASON.search(text[: match.start()])
        found.append(
            Block(
                page,
                len(found),
                match["language"].strip(),
                textwrap.dedent(match["text"]),
                reason and " ".join(reason[1].split()),
            )
        )
    return found


BLOCKS = [
    block
    for path in PAGES
    for block in blocks_of(path.read_text(), path.relative_to(ROOT).as_posix())
]


def main():
    counts = collections.Counter(
        (
            block.language,
            "shown" if block.language in OUTPUT else "not run" if block.reason else "run",
        )
        for block in BLOCKS
    )
    for (language, state), number in sorted(counts.items()):
        print(f"{language:12}{state:10}{number:4}")
    for block in BLOCKS:
        if block.reason:
            print(f"{block}: {block.reason}")


if __name__ == "__main__":
    main()
