"""What mkdocstrings reads of the package: its exports, and docstrings with fenced examples and
formulas as paragraphs."""

import re
from typing import Any

import griffe

REWRITTEN = {
    # griffe knows the section of examples by its plural
    r"^Example:\n": r"Examples:\n",
    # an example that does not run, on one line
    r"(?<=^Examples:\n) {4}(\w[\w. ]*[=(].*\))$": r"    ```python\n    \1\n    ```",
    r"^( *)>>> .*(?:\n.*\S.*)*": r"\n\1```pycon\n\g<0>\n\1```\n",
    r"^Examples:\n\n": r"Examples:\n",
    # a list begins after an empty line
    r"^(?!-|  )(.+:)\n(?=- )": r"\1\n\n",
}
"""What stands in docstrings, and what Markdown and griffe read."""
FORMULA = re.compile(r"^( *)\$\$(.+?)\$\$ *$", re.MULTILINE | re.DOTALL)


class HouseStyle(griffe.Extension):
    """Rewrites docstrings as they are read, and notes what packages hand out."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value
            for pattern, written in REWRITTEN.items():
                text = re.sub(pattern, written, text, flags=re.MULTILINE)
            obj.docstring.value = FORMULA.sub(
                lambda match: f"\n{match[1]}$$ {' '.join(match[2].split())} $$\n", text
            )

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Algorithms have pages of their own."""
        self.on_object(obj=pkg)
        for module in [pkg, *(each for each in pkg.modules.values() if not each.is_alias)]:
            if module.is_init_module and (module.exports is None or module is pkg):
                module.exports = [
                    name
                    for name, value in module.members.items()
                    if value.is_alias and re.match(r"fedax\.(?!algorithms\.)", value.target_path)
                ]
