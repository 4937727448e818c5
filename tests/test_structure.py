"""The laws of the layout: short algorithms that do not repeat each other, documented
public names."""

import ast
import builtins
import dataclasses
import inspect
import itertools
import json
import math
import re
import subprocess
import sys
import textwrap
import tokenize
from pathlib import Path
from typing import get_args

import pytest

import fedax
from fedax.core.algorithm import Reading
from fedax.core.hyper import declared
from problems import all_algorithms, named
from sources import own_files

SOURCE = Path(fedax.__file__).parent
MODULES = own_files("src/fedax")
ALGORITHMS = [path for path in own_files("src/fedax/algorithms") if path.name != "__init__.py"]
ALGORITHM_LINES = 150
ALGORITHM_CODE = 40
OVERLAP = 0.2


def code_lines(path):
    """The statements of a file, one a line: no docstrings, comments, imports, and not the card,
    which is data."""
    return statements(ast.parse(path.read_text()))


def statements(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node) is not None:
                del node.body[0]
            node.body = [part for part in node.body if not is_silent(part)] or [ast.Pass()]
    return [line.strip() for line in ast.unparse(tree).splitlines() if line.strip()]


def is_silent(node):
    card = isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "card"
    return card or isinstance(node, ast.Import | ast.ImportFrom)


def test_code_lines_counts_code(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        '"""Doc."""\nimport os\n\n# note\nclass A:\n    """Doc\n    more."""\n    card: int = '
        "[\n        1,\n    ]\n    x = 1\n"
    )
    assert code_lines(path) == ["class A:", "x = 1"]


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_algorithms_are_short(path):
    assert len(path.read_text().splitlines()) <= ALGORITHM_LINES
    assert len(code_lines(path)) <= ALGORITHM_CODE


def test_algorithms_do_not_repeat_each_other():
    """At most a fifth of a file's code, and a line more, stands verbatim in another one."""
    # lines of the contract itself are no repetition: signatures, decorators, fields of a state, and
    # rounds of one verb
    contract = (
        "@",
        "def ",
        "class ",
        "return state.",
        "return Personal.",
        "return Upload(client.minimize(start=w)",
    )
    contract += (
        "return Upload(state)",
        "return Upload(client.gradient(w))",
        "return ModelAndMemory(",
        "return MomentumState(",
        "needs: ",
        ")",
    )
    contract += ("self.require_fixed_graph()", "allowed = (")
    code = {path.stem: code_lines(path) for path in ALGORITHMS}
    fields = re.compile(r"\w+: (Vector|Memory)")
    own = {
        name: [line for line in lines if not (line.startswith(contract) or fields.fullmatch(line))]
        for name, lines in code.items()
    }
    shared = {
        (a, b): [line for line in own[a] if line in code[b]]
        for a, b in itertools.permutations(code, 2)
    }
    assert {
        pair: lines
        for pair, lines in shared.items()
        if len(lines) > max(OVERLAP * len(own[pair[0]]), 1)
    } == {}


def unknown_names(source):
    """Names that are read but bound nowhere in a module; texts are not looked at, where the shapes
    of arrays stand."""
    bound, read = {*vars(builtins), "__file__", "__doc__", "__path__"}, set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.split(".")[0])
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                bound.add(name)
            case ast.MatchMapping(rest=name):
                bound.add(name)
    return sorted(read - bound)


def test_unknown_names_are_found():
    assert unknown_names(
        "import os.path\ndef f(a: 'b'):\n    c = a\n    return os, c, d, len, threading.Thread()"
    ) == [
        "d",
        "threading",
    ]


def test_all_names_are_known():
    """Linters cannot tell: they would take the shapes in texts, such as `Float[Array, "clients"]`,
    for names."""
    files = own_files("src", "tests", "benchmarks", "docs")
    assert len(files) > 400
    assert {str(path): names for path in files if (names := unknown_names(path.read_text()))} == {}


def test_functions_have_few_positional_arguments():
    """At most nine, as the operators of PyTorch have, `self` not counted."""
    many = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
                count = len(names) - (names[:1] in (["self"], ["cls"]))
                many |= {f"{path.relative_to(SOURCE)}: {node.name}": count} if count > 9 else {}
    assert many == {}


@pytest.mark.parametrize("kind", all_algorithms(), ids=named)
def test_algorithms_say_where_they_come_from(kind):
    text = inspect.getdoc(kind)
    assert "Source: " in text
    assert kind.card.paper
    assert set(kind.card.read) <= set(get_args(Reading))


def public_objects():
    import fedax.core
    import fedax.data
    import fedax.graphs
    import fedax.models
    import fedax.observe
    import fedax.tasks
    import fedax.theory

    theory = [
        module
        for name, module in vars(fedax.theory).items()
        if inspect.ismodule(module) and name[0] != "_"
    ]
    named = (
        fedax.attacks,
        fedax.codecs,
        fedax.graphs,
        fedax.models,
        fedax.observe,
        fedax.privacy,
        fedax.tasks,
    )
    places = (fedax, fedax.core, fedax.data, *named, *theory)
    for module in places:
        for name in getattr(module, "__all__", dir(module)):
            member = getattr(module, name)
            home = getattr(member, "__module__", None) or ""
            ours = home.startswith("fedax.") and "._" not in home
            if (
                not name.startswith("_")
                and ours
                and (inspect.isclass(member) or inspect.isfunction(member))
            ):
                yield f"{module.__name__}.{name}", member


def test_every_public_name_is_documented():
    missing = set()
    for name, member in public_objects():
        if not inspect.getdoc(member):
            missing.add(name)
        # the class says what their work functions do
        if inspect.isclass(member) and member not in all_algorithms():
            missing |= {
                f"{name}.{attribute}"
                for attribute, value in vars(member).items()
                if inspect.isfunction(value)
                and not attribute.startswith("_")
                and not inspect.getdoc(getattr(member, attribute))
            }
    assert missing == set()


def parameters_of(member):
    """The names of its arguments, but for those that are not public or collect others."""
    try:
        found = inspect.signature(member).parameters.values()
    except (TypeError, ValueError):
        return []
    collecting = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return [
        one.name for one in found if one.kind not in collecting and not one.name.startswith("_")
    ]


def test_every_parameter_is_in_its_docstring():
    """So that `pydoc` of a public name says all; a name in a formula or a heading counts."""
    missing = [
        f"{name}({parameter})"
        for name, member in public_objects()
        for parameter in parameters_of(member)
        if not re.search(rf"(?<!\w){parameter}(?!\w)", inspect.getdoc(member))
    ]
    assert missing == []


@pytest.mark.parametrize("kind", all_algorithms(), ids=named)
def test_pydoc_has_hyperparameters_with_ranges_and_defaults(kind):
    text = inspect.getdoc(kind)
    for name, limits in declared(kind).items():
        assert re.search(
            rf"^    {name}: .*{re.escape(limits.allowed)}; default "
            rf"{re.escape(repr(limits.default))}\.$",
            text,
            re.M,
        )


RANGE = re.compile(
    r"in (?P<left>[\[(])(?P<low>[-.\d]+), (?P<high>[.\d]+)(?P<right>[\])])"
    r"|(?P<first>\d+) to (?P<last>\d+)"
    r"|(?P<bound>above|at least) (?P<least>[.\d]*\d)"
)


def documented_range(kind, name):
    """The interval that the docstring of a class, or else of a base class, gives an argument."""
    for one in kind.__mro__:
        arguments = inspect.cleandoc(one.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
        for entry in re.split(r"\n(?=    \w)", f"\n{arguments}"):
            names, _, text = " ".join(entry.split()).partition(": ")
            found = RANGE.search(text) if name in names.split(", ") else None
            if found and found["left"]:
                closed = found["left"] == "[", found["right"] == "]"
                return float(found["low"]), float(found["high"]), *closed
            if found and found["first"]:
                return float(found["first"]), float(found["last"]), True, True
            if found:
                return float(found["least"]), math.inf, found["bound"] == "at least", False
    return None


def test_ranges_in_docstrings_are_those_that_are_checked():
    """But for the largest counts, which docstrings leave out."""
    wrong, silent, count = {}, set(), 0
    kinds = [one for _, one in public_objects() if inspect.isclass(one)]
    for kind in dict.fromkeys([*all_algorithms(), *kinds]):
        for name, limits in declared(kind).items() if dataclasses.is_dataclass(kind) else ():
            ranged = limits.low > -math.inf and type(limits.default) in (int, float)
            if not ranged or name in ("step", "classes"):  # 0 stands for a default of these two
                continue
            documented = documented_range(kind, name)
            if documented is None:
                silent.add(name)
                continue
            high = math.inf if limits.counts and documented[1] == math.inf else limits.high
            closed = not limits.open_low, high < math.inf and not limits.open_high
            count += 1
            if (limits.low, high, *closed) != documented:
                wrong[f"{kind.__name__}.{name}"] = documented, limits
    assert wrong == {}
    # those of a graph stand at the methods that set them
    of_graphs = {"drops", "fails", "recovers", "noise", "awake"}
    assert silent == {"lam_min", "lam_max", "seed", "max_steps", *of_graphs}
    assert count > 100


def raises(function):
    """Whether its own lines raise something on purpose, but for what a subclass is to write."""
    found = (node.exc for node in ast.walk(function) if isinstance(node, ast.Raise))
    return any(
        isinstance(what, ast.Call) and "NotImplemented" not in ast.unparse(what) for what in found
    )


def test_public_functions_name_their_errors():
    missing = []
    for name, member in public_objects():
        if inspect.isfunction(member) and "<locals>" not in member.__qualname__:
            node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(member)))).body[0]
            missing += [name] * (raises(node) and "Raises:" not in inspect.getdoc(member))
    assert missing == []


def imports_of(path):
    """The names that a file imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_one_module_imports_what_jax_does_not_promise():
    private = ("jax._src", "jax.extend", "jax.interpreters")
    found = {
        path.name
        for path in own_files("src")
        for name in imports_of(path)
        if any(f"{name}.".startswith(f"{room}.") for room in private)
    }
    assert found == {"jax_internals.py"}


def test_nothing_is_imported_that_flower_does_not_promise():
    """Flower's public modules, and its version."""
    names = {
        name
        for path in own_files("src")
        for name in imports_of(path)
        if f"{name}.".startswith("flwr.")
    }
    public = ("flwr.app", "flwr.clientapp", "flwr.serverapp")
    assert {name for name in names if not name.startswith(public)} == {"flwr"}


def test_slow_imports_are_made_on_demand():
    """The command line starts without what only some commands need."""
    slow = ["scipy.stats", "scipy.optimize", "sklearn", "optimistix", "matplotlib", "jinja2"]
    code = f"import sys, fedax.cli; print([name for name in {slow} if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_help_and_complaints_of_the_command_line_come_without_jax():
    code = (
        "import sys; from typer.testing import CliRunner; from fedax.cli import app\n"
        "for words in (['--help'], ['--version'], ['run', '--hlep'], ['resume'], ['rnu'], "
        "['data', '--help'], ['deploy', '-x']):\n"
        "    print(CliRunner().invoke(app, words).exit_code, 'jax' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert done == "0 False\n" * 2 + "2 False\n" * 3 + "0 False\n" + "2 False\n"


def test_no_name_is_undefined():
    """Ruff's rule is off because it takes shapes for names, such as in `Float[Array, "dim"]`; here
    it counts outside of text."""
    ruff = Path(sys.executable).with_name("ruff")
    command = [
        ruff,
        "check",
        "--isolated",
        "--target-version",
        "py311",
        "--select",
        "F821",
        "--output-format",
        "json",
        SOURCE,
    ]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    assert found  # the shapes
    undefined = []
    for each in found:
        with tokenize.open(each["filename"]) as file:
            texts = [
                token
                for token in tokenize.generate_tokens(file.readline)
                if token.type == tokenize.STRING
            ]
        at = each["location"]["row"], each["location"]["column"] - 1
        if not any(token.start <= at < token.end for token in texts):
            undefined.append(f"{each['filename']}:{at[0]}: {each['message']}")
    assert undefined == []


def test_untracked_folders_are_not_read(tmp_path):
    """Files that git does not know, such as the environments of peers, are no part of the
    project."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "own.py").write_text("own = 1\n")
    for command in (["init", "--quiet"], ["add", "src/own.py"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    for place in ("benchmarks/peers/.environments/lib", "src/old", "src", "docs/drafts"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "foreign.py").write_text("print undefined_name")
    assert own_files("src", "benchmarks", "docs", "tests", root=tmp_path) == [
        tmp_path / "src" / "own.py"
    ]


def test_without_git_hidden_folders_are_left_out(tmp_path):
    for place in ("src", "src/.environments/lib"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.py").write_text("")
    assert own_files("src", root=tmp_path) == [tmp_path / "src" / "a.py"]
