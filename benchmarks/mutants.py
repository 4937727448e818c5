"""Mutation testing: changes one operator or number of the package at a time, and runs the tests
that execute the changed function.

    python benchmarks/mutants.py --count 400 --seed 0 --out mutants.csv

A first run maps every function to the tests that execute it, and how long each takes, into
`.cache/mutants.json`; `--map tests/core` maps files or folders again. A mutant is judged by the
shortest and most specific of its tests, in a process forked after fedax and all tests are imported.
Each row of the output is a mutant: whether a test `caught` it, it `survived`, or a test ran into
the `timeout`, which counts as caught. With the same seed a second call goes on where the first one
ended. `--again survived` judges such rows again, `--summary` counts the rows."""

import argparse
import ast
import collections
import contextlib
import csv
import gc
import importlib
import itertools
import json
import os
import pathlib
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import types
from unittest import mock

ROOT = pathlib.Path(__file__).parents[1]
CACHE = ROOT / ".cache"
FOLDERS = (
    "src/fedax/algorithms/server",
    "src/fedax/algorithms/personalized",
    "src/fedax/algorithms/decentralized",
    "src/fedax/core",
    "src/fedax/engine/round",
)
INTERFACE = "tests/test_api.py::test_the_public_interface_is_the_announced_one"
"""Has the defaults of hyperparameters, which tests of single methods seldom use."""
TESTS = [
    *(
        f"tests/{room}"
        for room in ("core", "closed_forms", "engines", "graphs", "observe", "laws", "privacy")
    ),
    "tests/data/test_devices.py",
    "tests/data/test_splits.py",
    "tests/test_api.py",
]
OPTIONS = ["-q", "-n", "0", "-p", "no:unraisableexception"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
FIELDS = ("file", "number", "line", "function", "change", "result", "seconds", "test", "reason")
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Scoped(ast.NodeTransformer):
    """Knows the outermost function of a node, if it is in one, by its qualified name."""

    def __init__(self) -> None:
        self.classes: list[str] = []
        self.function = ""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.classes.append(node.name)
        self.generic_visit(node)
        self.classes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer, self.function = self.function, self.function or ".".join([*self.classes, node.name])
        # annotations have shapes and ranges that no run reads
        node.body = [self.visit(child) for child in node.body]
        self.function = outer
        return node


class Marker(Scoped):
    """Lets each function write its name down when it is called. This costs less than a profiler,
    which is called by every function of JAX while it traces."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        name = f"{self.file}::{self.function or '.'.join([*self.classes, node.name])}"
        super().visit_FunctionDef(node)
        mark = ast.parse(f"import called; called.NAMES.add({name!r})").body
        after = 0 if ast.get_docstring(node) is None else 1
        node.body[after:after] = mark
        return node


class Mutator(Scoped):
    """Counts the places of a tree that may change, and changes the one with the number `target`."""

    def __init__(self, target: int | None = None) -> None:
        super().__init__()
        self.target, self.count, self.line, self.change, self.where = target, 0, 0, "", ""

    def _is_target(self, node: ast.AST, change: str) -> bool:
        hit = self.count == self.target
        self.count += 1
        if hit:
            self.line, self.change = getattr(node, "lineno", 0), change
            self.where, self.class_name = self.function, ".".join(self.classes)
        return hit

    def _operator(self, node: ast.AST, operator: ast.AST) -> ast.AST:
        other = OPERATORS.get(type(operator))
        changes = other is not None and self._is_target(
            node, f"{type(operator).__name__} to {other.__name__}"
        )
        return other() if changes and other else operator

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        node.op = self._operator(node, node.op)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        node.op = self._operator(node, node.op)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        node.op = self._operator(node, node.op)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        node.ops[0] = self._operator(node, node.ops[0])
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        signed = isinstance(node.op, ast.USub | ast.Not)
        return (
            node.operand
            if signed and self._is_target(node, f"without {type(node.op).__name__}")
            else node
        )

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) in (int, float) and self._is_target(
            node, f"{node.value} to {node.value + 1}"
        ):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self.visit(node.value)
        return node


class Mutant:
    """One change of one file."""

    def __init__(self, file: str, number: int) -> None:
        mutator = Mutator(number)
        tree = mutator.visit(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        self.file, self.number, self.line, self.change = file, number, mutator.line, mutator.change
        self.function, self.class_name = mutator.where, mutator.class_name
        self.text = ast.unparse(ast.fix_missing_locations(tree))

    def replace_code(self, functions: list[types.FunctionType]) -> bool:
        """Gives the living functions of the file their changed code; returns whether the changed
        function is among them."""
        path = pathlib.Path(self.file)
        name = ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")
        # of the tests' type checker, which decorates what it compiles
        loader = sys.modules[name].__loader__
        old, new = (
            list(code_objects(loader.source_to_code(text, str(path.absolute()))))
            for text in (path.read_bytes(), self.text.encode())
        )
        changed = dict(zip(old, new, strict=True))
        living = [(function, changed.get(function.__code__)) for function in functions]
        for function, code in living:
            if code:
                function.__code__ = code
        return any(code and function.__qualname__ == self.function for function, code in living)

    def row(self, result: str, seconds: float, test: str) -> dict[str, object]:
        """Returns the mutant as a row of the output."""
        where = self.function or self.class_name
        values = (self.file, self.number, self.line, where, self.change, result, round(seconds, 1))
        return dict(zip(FIELDS, (*values, test, ""), strict=True))


def code_objects(code: types.CodeType):
    """Yields the functions' code in the code of a module, in the order of the source."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from code_objects(constant)


def places() -> list[tuple[str, int]]:
    """Returns file and number of every place that may change."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            counter = Mutator()
            counter.visit(ast.parse(path.read_text(encoding="utf-8")))
            found += [(str(path.relative_to(ROOT)), number) for number in range(counter.count)]
    return found


class Loop:
    """A plugin of pytest that hands what was collected to a function, which runs what it wants."""

    def __init__(self, work) -> None:
        self.work, self.failed, self.ran = work, "", 0
        self.left_out: list[str] = []

    def pytest_runtest_logreport(self, report) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.left_out.append(report.nodeid)
            self.failed = self.failed or f"import of {report.nodeid}"

    def pytest_runtestloop(self, session) -> bool:
        self.work(session, self)
        return True

    def run(self, session, names: list[str], seconds: float) -> None:
        """Runs tests by name, until one fails or the processor time is over."""
        items = {item.nodeid: item for item in session.items}
        chosen = [items[name] for name in names if name in items]
        for item, following in zip(chosen, [*chosen[1:], None]):
            if self.failed or time.process_time() > seconds:
                break
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self.ran += 1


def in_child(work, folder: pathlib.Path, seconds: float = 1e9) -> object:
    """Returns what `work` returns in a forked process, "timeout" after `seconds` of processor time,
    and "stuck" after ten times as long."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        os.chdir(folder)
        if seconds < 1e9:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        try:
            answer = work()
        except BaseException as error:  # of a mutant, whatever it is
            answer = f"error: {type(error).__name__}: {error}"[:200]
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], min(10 * seconds, 1e6))
    with os.fdopen(reading) as pipe:
        answer = pipe.read() if ready else ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with the processes that tests have started
    os.waitpid(child, 0)
    return json.loads(answer) if answer else "timeout" if ready else "stuck"


def copy(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns a copy of the repository, so that the working tree does not change."""
    ignored = shutil.ignore_patterns(".git", ".venv", ".cache", "runs", "site", "__pycache__")
    return pathlib.Path(shutil.copytree(ROOT, folder / name, ignore=ignored))


class Map:
    """Tests with their processor time and the functions that they execute."""

    def __init__(self) -> None:
        self.path = CACHE / "mutants.json"
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.tests: dict[str, tuple[float, list[str]]] = known.get("tests", {})
        self.imported: list[str] = known.get("imported", [])

    def make(self, paths: list[str], folder: pathlib.Path) -> None:
        """Runs tests in a marked copy of the repository; those that fail there are left out."""
        tree = copy(folder, "marked")
        for file in {file for file, _ in places()}:
            text = ast.unparse(Marker(file).visit(ast.parse((ROOT / file).read_text())))
            (tree / file).write_text(text, encoding="utf-8")
        (tree / "src" / "called.py").write_text("NAMES = set()\n")
        print("map:", in_child(lambda: run_pytest(tree, paths, Loop(self._run)), tree) or "passed")

    def _run(self, session, loop: Loop) -> None:
        import called

        self.imported = sorted({*self.imported, *called.NAMES})
        for number, (item, following) in enumerate(
            zip(session.items, [*session.items[1:], None]), 1
        ):
            called.NAMES.clear()
            loop.failed, begun = "", time.process_time()
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if not loop.failed and called.NAMES:
                seconds = round(time.process_time() - begun, 3)
                self.tests[item.nodeid] = (seconds, sorted(called.NAMES))
            if number % 20 == 0 or following is None:
                self.path.write_text(json.dumps({"tests": self.tests, "imported": self.imported}))

    def choose(self, mutant: Mutant, count: int) -> list[str]:
        """Returns the tests of a mutant: in turns one of the closed forms, which know the numbers,
        and any other; short ones that execute little else first, and of a parametrized test a few
        cases."""
        prefix = f"{mutant.file}::{mutant.function or mutant.class_name}"
        costs, cases = [], collections.Counter()
        for test, (seconds, functions) in sorted(
            self.tests.items(), key=lambda pair: pair[1][0] * len(pair[1][1])
        ):
            hits = [name for name in functions if name.startswith(prefix)]
            if prefix in hits or (hits and not mutant.function):
                name = test.partition("[")[0]
                cases[name] += 1
                costs.append(((seconds + 0.05) * len(functions) * cases[name] ** 2, test))
        ranked = [test for _, test in sorted(costs)]
        forms = [test for test in ranked if test.startswith("tests/closed_forms")]
        others = [test for test in ranked if test not in set(forms)]
        turns = itertools.chain.from_iterable(itertools.zip_longest(forms, others))
        chosen = [test for test in turns if test][:count]
        return chosen if mutant.function else [INTERFACE, *chosen]


def run_pytest(tree: pathlib.Path, paths: list[str], loop: Loop) -> str:
    """Runs pytest in a copy of the repository; returns the first test that failed."""
    import pytest

    sys.path[:0] = [str(tree / "src")]
    os.environ["PYTHONPATH"] = str(tree / "src")
    code = pytest.main([*OPTIONS, *paths], plugins=[loop])
    return loop.failed or ("" if code in (0, 5) else f"pytest ended with {code}")


@contextlib.contextmanager
def without_backend():
    """Lets JAX refuse to start, because its threads would not live in forked children: the files
    of tests that make arrays when they are imported fail, and are left out. Yields a function that
    ends this earlier."""
    import jax
    from jax._src import xla_bridge

    def refuse(platform: str):
        raise RuntimeError(f"{platform} is not started while tests are imported")

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(xla_bridge, "_init_backend", refuse))
        # enough for engines that are made when a file is imported: as conftest.py says
        stack.enter_context(mock.patch.object(jax, "devices", return_value=[None] * 2))
        stack.enter_context(mock.patch.object(jax, "default_backend", return_value="cpu"))
        yield stack.close


class Judge:
    """Judges mutants and writes their rows."""

    def __init__(self, given: argparse.Namespace, tree: pathlib.Path, known: Map) -> None:
        self.given, self.tree, self.map = given, tree, known
        self.sound: dict[str, bool] = {}

    def judge(self, mutant: Mutant, run) -> bool:
        """Runs the tests of a mutant by `run(mutant or None, tests)`; returns whether there is a
        row now. A test that fails without the mutant too is left out."""
        begun = time.monotonic()
        tests = self.map.choose(mutant, self.given.tests)
        test = "no tests"
        while tests:
            test = run(mutant, tests)
            if test in ("", "timeout", "stuck", "not living") or not test.startswith("tests/"):
                break
            if test not in self.sound:
                self.sound[test] = run(None, [test]) == ""
            if self.sound[test]:
                break
            tests.remove(test)
        at_import = f"{mutant.file}::{mutant.function}" in self.map.imported
        if run != self.imported and (test in ("not living", "stuck") or (test == "" and at_import)):
            return False
        result = {"": "survived", "stuck": "timeout"}.get(
            test, test if test in ("timeout", "no tests") else "caught"
        )
        row = mutant.row(result, time.monotonic() - begun, test)
        with self.given.out.open("a", newline="") as out:
            csv.DictWriter(out, FIELDS).writerow(row)
        return True

    def in_functions(self, session, mutants: list[Mutant]) -> list[int]:
        """Judges mutants of functions, in children that have all tests; returns the positions of
        those that have to be imported."""
        gc.unfreeze()
        functions = collections.defaultdict(list)
        for one in gc.get_objects():
            if isinstance(one, types.FunctionType) and "/src/fedax/" in one.__code__.co_filename:
                functions[one.__code__.co_filename].append(one)
        gc.freeze()

        def run(mutant: Mutant | None, tests: list[str]) -> object:
            def work() -> str:
                loop = Loop(None)
                session.config.pluginmanager.register(loop)
                if mutant and not mutant.replace_code(functions[str(self.tree / mutant.file)]):
                    return "not living"
                loop.run(session, tests, time.process_time() + self.given.seconds)
                return loop.failed if loop.ran else "not living"

            return in_child(work, self.tree, 3 * self.given.seconds + 20)

        left = []
        for position, mutant in enumerate(mutants):
            if not mutant.function or not self.judge(mutant, run):
                left.append(position)
        return left

    def imported(self, mutant: Mutant | None, tests: list[str]) -> object:
        """Judges a mutant in a child that imports it with the files of its tests."""

        def work() -> str:
            sys.dont_write_bytecode = True
            loop = Loop(lambda session, loop: loop.run(session, tests, 1e9))
            return run_pytest(self.tree, sorted({test.partition("::")[0] for test in tests}), loop)

        if mutant is None:
            return in_child(work, self.tree, 300)
        path = self.tree / mutant.file
        original, stat = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutant.text, encoding="utf-8")
        try:
            return in_child(work, self.tree, 300)
        finally:
            path.write_text(original, encoding="utf-8")
            # the compiled file is that of this time
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def prepare(folder: pathlib.Path) -> None:
    """Imports what all children share, without fedax and without a backend."""
    # What was compiled may be shared: its key is the program, so that a mutant that changes the
    # program misses it. Calibrations of fedax are stored by device and size only: not shared.
    os.environ["XDG_CACHE_HOME"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE / "programs")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ.setdefault("FEDAX_DATA", str(ROOT.parent / "shared" / "data"))
    # of the repository only its environment: fedax is that of the copy
    sys.path = [path for path in sys.path if not path.startswith(str(ROOT)) or "-packages" in path]
    for name in ("beartype", "equinox", "jax", "jaxtyping", "optax", "pytest", "scipy.stats"):
        importlib.import_module(name)


def main() -> None:
    """Judges as many mutants as asked for, but for those that the output has."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", type=int, default=16, help="most tests of a mutant")
    parser.add_argument("--seconds", type=float, default=8.0, help="processor time of its tests")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("mutants.csv"))
    parser.add_argument("--map", nargs="+", default=[], help="only map these tests again")
    parser.add_argument("--again", default="", help="judge rows with this result again")
    parser.add_argument("--summary", action="store_true", help="only count the rows")
    given = parser.parse_args()
    given.out = given.out.absolute()
    rows = list(csv.DictReader(given.out.open())) if given.out.exists() else []
    if given.summary:
        print(collections.Counter(row["result"] for row in rows))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        prepare(folder)
        if given.map or not Map().tests:
            Map().make(given.map or TESTS, folder)
        if given.map:
            return
        kept = [row for row in rows if row["result"] != given.again]
        with given.out.open("w", newline="") as out:
            writer = csv.DictWriter(out, FIELDS)
            writer.writeheader()
            writer.writerows(kept)
        every, known = places(), {(row["file"], int(row["number"])) for row in kept}
        drawn = random.Random(given.seed).sample(every, min(given.count, len(every)))
        mutants = [Mutant(*place) for place in drawn if place not in known]
        print(f"{len(drawn)} of {len(every)} mutants, {len(mutants)} of them to judge", flush=True)
        judge = Judge(given, copy(folder, "fedax"), Map())
        left: list[int] = []

        def work() -> tuple[list[int], list[str]]:
            with without_backend() as end:
                loop = Loop(
                    lambda session, _: (end(), left.extend(judge.in_functions(session, mutants)))
                )
                files = sorted({test.partition("::")[0] for test in judge.map.tests})
                run_pytest(judge.tree, ["--continue-on-collection-errors", *files], loop)
            return left, loop.left_out

        found = in_child(work, judge.tree)
        if not isinstance(found, list):
            raise SystemExit(f"The tests could not be imported: {found}")
        positions, left_out = found
        if left_out:  # their import makes arrays, for which no backend is there yet
            print(
                f"Not asked, since they cannot be imported: {', '.join(sorted({*left_out}))}",
                flush=True,
            )
        for position in positions:
            judge.judge(mutants[position], judge.imported)


if __name__ == "__main__":
    main()
