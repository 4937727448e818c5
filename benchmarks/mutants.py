"""Mutation testing: changes one operator or number of the package at a time, and runs the tests of
its module.

    python benchmarks/mutants.py --count 400 --seed 0 --out mutants.jsonl

Works on a copy of the repository, so that the working tree does not change. Each line of the output
is a mutant: its file, line, change, and whether its tests `caught` it, let it `survive`, or ran
into the `timeout`, which counts as caught. With the same seed a second call goes on where the first
one ended. `--summary` counts what a file of results has."""

import argparse
import ast
import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
LAWS = "tests/laws/test_laws.py"
FORMS = "tests/closed_forms"
INTERFACE = "tests/test_api.py"
"""Has the defaults of hyperparameters, which tests of single methods seldom use."""
TESTS = {
    "src/fedax/algorithms/server": [
        f"{FORMS}/test_server_transcriptions.py",
        f"{FORMS}/test_edges.py",
        LAWS,
        INTERFACE,
    ],
    "src/fedax/algorithms/personalized": [
        f"{FORMS}/test_personal_transcriptions.py",
        f"{FORMS}/test_edges.py",
        LAWS,
        INTERFACE,
    ],
    "src/fedax/algorithms/decentralized": [
        f"{FORMS}/test_graph_methods.py",
        f"{FORMS}/test_edges.py",
        LAWS,
        INTERFACE,
    ],
    "src/fedax/core": ["tests/core", f"{FORMS}/test_pencil_and_paper.py"],
    "src/fedax/engine/round": [
        "tests/engines/test_sums.py",
        "tests/engines/test_draws.py",
        "tests/engines/test_channel.py",
        f"{FORMS}/test_partial_and_unequal.py",
        f"{FORMS}/test_pencil_and_paper.py",
    ],
}
"""Fast tests by the folder of the mutated file."""
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


class Mutator(ast.NodeTransformer):
    """Counts the places of a tree that may change, and changes the one with the number `target`."""

    def __init__(self, target: int | None = None) -> None:
        self.target, self.count, self.line, self.change = target, 0, 0, ""

    def _is_target(self, node: ast.AST, change: str) -> bool:
        hit = self.count == self.target
        self.count += 1
        if hit:
            self.line, self.change = getattr(node, "lineno", 0), change
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

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # annotations have shapes and ranges that no run reads
        node.body = [self.visit(child) for child in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self.visit(node.value)
        return node


def places() -> list[tuple[str, int]]:
    """Returns file and number of every place that may change."""
    found = []
    for folder in TESTS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            counter = Mutator()
            counter.visit(ast.parse(path.read_text(encoding="utf-8")))
            found += [(str(path.relative_to(ROOT)), number) for number in range(counter.count)]
    return found


def judge(tree: pathlib.Path, file: str, number: int, limit: float) -> dict[str, object]:
    """Runs the tests of one mutant in the copied tree, and puts the file back."""
    path, original = tree / file, (ROOT / file).read_text(encoding="utf-8")
    mutator = Mutator(number)
    mutant = ast.unparse(ast.fix_missing_locations(mutator.visit(ast.parse(original))))
    tests = next(tests for folder, tests in TESTS.items() if file.startswith(folder))
    stem = path.stem.replace("_", "")
    chosen = ["-k", f"{stem} or public_interface"] if "/algorithms/" in file else []
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
    ]
    # no cache of compiled programs: a mutant must not read or write those of others
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    begun = time.monotonic()
    path.write_text(mutant, encoding="utf-8")
    try:
        done = subprocess.run(
            [*command, *chosen, *tests],
            cwd=tree,
            env=environment,
            timeout=limit,
            capture_output=True,
            text=True,
            check=False,
        )
        # 5: the selection has no tests, which is an error of this script
        result = {0: "survived", 1: "caught", 2: "caught", 5: "no tests"}.get(
            done.returncode, "error"
        )
        said = done.stdout.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired:
        result, said = "timeout", []
    finally:
        path.write_text(original, encoding="utf-8")
    seconds = round(time.monotonic() - begun, 1)
    mutant_id = {"file": file, "number": number, "line": mutator.line, "change": mutator.change}
    return {**mutant_id, "result": result, "seconds": seconds, "said": "".join(said)[:120]}


def summarize(lines: list[dict[str, object]]) -> str:
    """Returns how many mutants there are of each result."""
    counts = collections.Counter(str(line["result"]) for line in lines)
    return ", ".join(f"{count} {result}" for result, count in counts.most_common()) or "no mutants"


def main() -> None:
    """Judges as many mutants as asked for, beginning after those that the output has."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for the tests of one mutant"
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("mutants.jsonl"))
    parser.add_argument(
        "--summary", action="store_true", help="only count the results that there are"
    )
    given = parser.parse_args()
    lines = (
        [json.loads(line) for line in given.out.read_text().splitlines()]
        if given.out.exists()
        else []
    )
    if not given.summary:
        every = places()
        chosen = random.Random(given.seed).sample(every, min(given.count, len(every)))
        known = {(line["file"], line["number"]) for line in lines}
        print(
            f"{len(chosen)} of {len(every)} mutants, {len(known.intersection(chosen))} of "
            "them judged before"
        )
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder) / "fedax"
            ignored = shutil.ignore_patterns(
                ".git", ".venv", ".cache", "runs", "site", "__pycache__"
            )
            shutil.copytree(ROOT, tree, ignore=ignored)
            for file, number in chosen:
                if (file, number) in known:
                    continue
                lines.append(judge(tree, file, number, given.timeout))
                with given.out.open("a") as out:
                    out.write(json.dumps(lines[-1]) + "\n")
                print(json.dumps(lines[-1]), flush=True)
    print(summarize(lines))


if __name__ == "__main__":
    main()
