"""Counts the small mistakes in the code that the tests find: seeded mutants, one at a time.

    python tests/campaigns/mutants.py --count 200 --seed 1 --report mutants.json

A mutant is one change of an expression or statement of `SOURCES`. It is written into a copy of the
repository. There the tests of its module run first, in order of speed, and then, with ``--whole``,
all tests of ``pytest``. The seed and the sources determine the mutants and their order. Mutants in
the report are not run again.
"""

import argparse
import ast
import copy
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent.parent
LIMIT_SECONDS = 900  # for one run of pytest

# The mutated files and their tests: each list is a run of pytest, the quickest first. Missing files
# and folders are left out.
AGGREGATION = "tests/algorithms/aggregation"
SOURCES = {
    "hpcfl/crypto/*.py": [["tests/crypto"], ["tests/recorded", AGGREGATION, "tests/privacy"]],
    "hpcfl/algorithms/aggregation/*.py": [
        ["tests/recorded"],
        [AGGREGATION],
        ["tests/prediction", "tests/fuzz", "tests/security", "tests/campaigns"],
        ["tests/privacy", "tests/attack"],
    ],
    "hpcfl/privacy/accounting/*.py": [
        ["tests/privacy"],
        ["tests/recorded", "tests/algorithms/federated", "tests/learning", "tests/train"],
    ],
    **{
        f"hpcfl/rounds/{name}.py": [
            ["tests/recorded"],
            [AGGREGATION],
            ["tests/bench", "tests/faults", "tests/train"],
        ]
        for name in ("driver", "timed", "ledger", "validation", "failures")
    },
}

COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


@dataclass(frozen=True)
class Mutant:
    """The n-th possible change of a file, to an expression or statement on a line."""

    file: str
    number: int
    line: int
    kind: str
    text: str  # of the line
    before: str
    after: str

    def applied(self):
        """Return the changed source, without its comments."""
        tree = ast.parse((ROOT / self.file).read_bytes())
        node, _, other = next(itertools.islice(changes(tree), self.number, None))
        return ast.unparse(_Replacing(node, other).visit(tree))

    def diff(self):
        """Return the line and its change."""
        return f" {self.text}\n-{self.before}\n+{self.after}"

    def id(self, seed=None):
        """Return an id, or with a seed a sort key, that is independent of other lines."""
        return hashlib.sha256(f"{seed}\n{self.file}\n{self.diff()}".encode()).hexdigest()[:12]


class _Replacing(ast.NodeTransformer):
    def __init__(self, node, other):
        self._node, self._other = node, other

    def visit(self, node):
        return self._other if node is self._node else self.generic_visit(node)


def mutants(file):
    """Return all mutants of a file."""
    source = (ROOT / file).read_text()
    lines, found = source.splitlines(), []
    for number, (node, kind, other) in enumerate(changes(ast.parse(source))):
        texts = [ast.unparse(one) for one in (node, other)]
        if texts[0] != texts[1]:
            line = lines[node.lineno - 1].strip()
            first = [text.partition("\n")[0] for text in texts]
            found.append(Mutant(file, number, node.lineno, kind, line, *first))
    return found


def changes(tree):
    """Yield the possible changes of executable code: a node, the kind, and the replacement."""
    for node in _executable(tree):
        if isinstance(node, ast.stmt):
            yield from ((node, kind, other) for kind, other in _other_statements(node))
        elif isinstance(node, ast.expr):
            yield from ((node, kind, other) for kind, other in _other_expressions(node))


def _executable(node):
    """Yield nodes except docstrings, annotations, decorators, messages, `__repr__`, imports."""
    if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__"):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    # zip(..., strict=True) only asserts a condition that the function ensures itself.
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    yield node
    if isinstance(node, ast.Raise):
        return
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                yield from _executable(child)


def _other_statements(node):
    nothing = ast.Pass()
    only_raises = isinstance(node, ast.If) and all(isinstance(n, ast.Raise) for n in node.body)
    checks = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if isinstance(node, (ast.Raise, ast.Assert)) or (only_raises and not node.orelse) or checks:
        yield "removed statement", nothing
    if isinstance(node, (ast.If, ast.While)):
        yield "negated condition", _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.AugAssign):
        yield "operator", _with(node, op=OPERATORS.get(type(node.op), ast.Add)())
    if isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
        yield "return value", _with(node, value=ast.Constant(None))


def _other_expressions(node):
    match node:
        case ast.Compare(ops=[op]):
            for other in COMPARISONS[type(op)]:
                yield "comparison", _with(node, ops=[other()])
        case ast.BinOp(left=ast.Constant(value=str()) | ast.JoinedStr()):
            return
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            yield "operator", _with(node, op=OPERATORS[type(op)]())
        case ast.UnaryOp(operand=operand):
            yield "dropped sign or not", operand
        case ast.BoolOp(op=op):
            yield "and/or", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.IfExp(test=test):
            yield "negated condition", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", ast.Constant(value + 1)
            yield "constant", ast.Constant(value - 1)
        case ast.Slice(lower=lower, upper=upper):
            if lower:
                yield "slice bound", _with(node, lower=None)
            if upper:
                yield "slice bound", _with(node, upper=None)
                one_less = ast.BinOp(upper, ast.Sub(), ast.Constant(1))
                yield "slice bound", _with(node, upper=one_less)
        case ast.Call(func=ast.Name(id="min" | "max")):
            return  # their arguments may stand in any order
        case ast.Call(args=[first, second, *rest]) if not isinstance(second, ast.Starred):
            yield "swapped arguments", _with(node, args=[second, first, *rest])


def _with(node, **fields):
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def drawn(count, seed):
    """Return the first `count` mutants in the seed's order.

    A larger count begins with the same mutants; small changes of the sources keep most of them.
    """
    files = sorted(
        str(path.relative_to(ROOT)) for pattern in SOURCES for path in ROOT.glob(pattern)
    )
    # If a file has the same line twice, one mutant is enough.
    found = {mutant.id(seed): mutant for file in files for mutant in mutants(file)}
    return [found[key] for key in sorted(found)][:count]


def stages(file, whole):
    """Return the runs of pytest that a mutant of a file must survive, quickest first."""
    (runs,) = (runs for pattern, runs in SOURCES.items() if Path(file).match(pattern))
    own = [str(p.relative_to(ROOT)) for p in ROOT.glob(f"tests/**/test_*{Path(file).stem}*.py")]
    there = [[place for place in run if (ROOT / place).exists()] for run in [own, *runs]]
    return [*filter(None, there), *([["tests"]] if whole else [])]


def copied(folder):
    """Copy the tracked files of the working tree to a folder."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def survives(tests, folder):
    """Run pytest in a copy; return whether all tests passed, and the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    run = subprocess.Popen(
        [*command, "--tb=no", "-m", "not full", "-o", "timeout=60", *tests],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = run.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        return False, f"no end after {LIMIT_SECONDS} s"
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return run.returncode == 0, (failed or output.splitlines()[-1:] or ["no output"])[0][:200]


# Runs of pytest that pass without a mutant.
SOUND = []


def judged(mutant, folder, whole):
    """Put a mutant into a copy of the repository, run the tests, and remove it again."""
    began, target = time.monotonic(), folder / mutant.file
    target.write_text(mutant.applied())
    try:
        for tests in stages(mutant.file, whole):
            survived, by = survives(tests, folder)
            if not survived:
                break
    finally:
        shutil.copy(ROOT / mutant.file, target)
        shutil.rmtree(folder / ".hypothesis", ignore_errors=True)
    if not survived and tests not in SOUND:
        passed, why = survives(tests, folder)
        if not passed:
            raise SystemExit(f"without any mutant {' '.join(tests)} does not pass: {why}")
        SOUND.append(tests)
    return {
        "file": mutant.file,
        "line": mutant.line,
        "kind": mutant.kind,
        "diff": mutant.diff(),
        "result": "survived" if survived else "killed",
        "by": "" if survived else by,
        "seconds": round(time.monotonic() - began, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--whole", action="store_true", help="survivors meet all of make test")
    parser.add_argument("--report", type=Path, default=Path("mutants.json"))
    options = parser.parse_args()
    chosen = drawn(options.count, options.seed)
    report = json.loads(options.report.read_text()) if options.report.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folders = SimpleQueue()
        for job in range(options.jobs):
            folders.put(copied(Path(temporary) / str(job)))

        def judge(mutant):
            folder = folders.get()
            try:
                found = report[mutant.id()] = judged(mutant, folder, options.whole)
            finally:
                folders.put(folder)
            part = options.report.with_suffix(".part")
            part.write_text(json.dumps(report, indent=1))
            part.replace(options.report)
            print(
                f"{found['result']} {mutant.file}:{mutant.line} {mutant.kind}, "
                f"{found['seconds']} s {found['by']}\n{found['diff']}",
                flush=True,
            )

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(judge, [one for one in chosen if one.id() not in report]))
    killed = [report[one.id()]["result"] for one in chosen].count("killed")
    print(f"{killed} of {len(chosen)} killed, {killed / max(1, len(chosen)):.1%}")


if __name__ == "__main__":
    main()
