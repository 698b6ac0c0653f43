"""Measure the code as docs/architecture.md promises; ``python tests/test_house.py [package]`` lists what is left."""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "roofline"
LONGEST, MEDIAN, MEMBERS = 60, 12, 25
#: Names that say nothing of what they hold.
EMPTY = frozenset({"found", "told", "beside", "kept", "wanted", "given", "again", "meant", "asked", "wished"})
#: How a docstring that begins with a noun clause begins; PEP 257 wants an imperative.
CLAUSE = re.compile(r"^(What|Whether|Those|Of|How|Which|Whose|Where|By|All that|Everything)\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def trees(package: str = "") -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((SOURCE / package).rglob("*.py")):
        yield path.relative_to(SOURCE), parsed(path)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(package: str = "") -> Iterator[tuple[str, Function]]:
    for path, tree in trees(package):
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{path}:{node.lineno} {node.name}", node


def length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def long_functions(package: str = "") -> list[str]:
    return [f"{where}: {length(node)} lines" for where, node in functions(package) if length(node) > LONGEST]


def large_classes(package: str = "") -> list[str]:
    large = []
    for path, tree in trees(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                fields = sum(isinstance(item, ast.AnnAssign) for item in node.body)
                methods = sum(isinstance(item, Function) for item in node.body)
                if max(fields, methods) > MEMBERS:
                    large.append(f"{path}:{node.lineno} {node.name}: {fields} fields, {methods} methods")
    return large


def empty_names(package: str = "") -> list[str]:
    """Locals and parameters that are called by a word for how they came about."""
    named: Counter[str] = Counter()
    for where, node in functions(package):
        names = {item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
        names |= {item.arg for item in ast.walk(node) if isinstance(item, ast.arg)}
        named.update(f"{where}: {name}" for name in sorted(names & EMPTY))
    return sorted(named)


def clauses(package: str = "") -> list[str]:
    return [
        f"{where}: {doc.splitlines()[0]}"
        for where, node in functions(package)
        if (doc := ast.get_docstring(node)) and CLAUSE.match(doc)
    ]


def single_use(package: str = "") -> list[str]:
    """Private functions of at most 6 lines that their module names once."""
    single = []
    for path, tree in trees(package):
        names = Counter(
            item.id if isinstance(item, ast.Name) else item.attr
            for item in ast.walk(tree)
            if isinstance(item, ast.Name | ast.Attribute)
        )
        single += [
            f"{path}:{node.lineno} {node.name}: {length(node)} lines"
            for node in ast.walk(tree)
            if isinstance(node, Function)
            and node.name.startswith("_")
            and not node.name.startswith("__")
            and names[node.name] == 1
            and length(node) <= 6
            and not node.decorator_list
        ]
    return single


def main(package: str = "") -> None:
    lengths = [length(node) for _, node in functions(package)]
    lines = sum(len((SOURCE / path).read_text(encoding="utf-8").splitlines()) for path, _ in trees(package))
    for check in (long_functions, large_classes, empty_names, clauses, single_use):
        offenders = check(package)
        print(f"== {check.__name__}: {len(offenders)}", *offenders, sep="\n  ")
    print(f"{package or 'all'}: {lines} lines, {len(lengths)} functions, median {statistics.median(lengths)}")


def test_functions_fit_on_a_screen() -> None:
    assert not long_functions()
    assert statistics.median(length(node) for _, node in functions()) < MEDIAN


def test_classes_fit_in_a_head() -> None:
    assert not large_classes()


def test_names_say_what_they_hold() -> None:
    assert not empty_names()


def test_docstrings_are_imperatives() -> None:
    assert not clauses()


def test_nothing_is_loose_at_the_top() -> None:
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (long_functions, "def f():\n" + "    x = 1\n" * 60),
        (large_classes, "class A:\n" + "".join(f"    a{at}: int\n" for at in range(26))),
        (empty_names, "def f(found):\n    pass\n"),
        (clauses, 'def f():\n    """What it is."""\n'),
        (single_use, "def _f():\n    return 1\n\nx = _f()\n"),
    ],
)
def test_each_measure_sees_its_fault(
    check: Callable[[], list[str]], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module.py").write_text(text)
    monkeypatch.setattr("test_house.SOURCE", tmp_path)
    assert check()


if __name__ == "__main__":
    main(*sys.argv[1:])


#: What writes a file or makes a path of what somebody gave, and where that is done.
FILES = {
    "cli/__init__.py: open",  # os.devnull, where a stream is closed
    "hardware/library.py: expanduser",  # ROOFLINE_PATH, where what is not there is passed over
    "ir/files.py: expanduser",
    "ir/files.py: mkstemp",
    "ir/files.py: open",
    "view/charts/chart.py: savefig",  # into memory
}


def writes_a_file(node: ast.Call, name: str) -> bool:
    modes = [arg.value for arg in (*node.args[1:2], *(word.value for word in node.keywords if word.arg == "mode"))
             if isinstance(arg, ast.Constant)]  # fmt: skip
    return name == "open" and any(isinstance(mode, str) and set(mode) & set("wax+") for mode in modes)


def test_one_module_writes_files_and_expands_paths() -> None:
    banned = {"write_text", "write_bytes", "expanduser", "rename", "renames", "savefig", "to_csv", "mkstemp"}
    calls = set()
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in banned or writes_a_file(node, name):
                    calls.add(f"{path}: {name}")
    assert calls == FILES, "ir/files.py has user_path, read_file and whole_file"
