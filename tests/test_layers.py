"""The layers of docs/architecture.md, read from the imports of every module in src/roofline.

A module may import from its own layer and from those below it, and no imports may form a
circle. Imports inside functions and under `if TYPE_CHECKING` count as well: they hide the
direction of a dependency, and do not change it. Only the package's own `__init__` may name any
module under `if TYPE_CHECKING`, to give types to what it loads on demand.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "roofline"
PACKAGE = "roofline"

# Lowest first: a package may import from those before it.
LAYERS: list[tuple[str, list[str]]] = [
    (name, [name])
    for name in (
        "ir", "ops", "hardware", "counting", "tiling", "cost", "passes", "programs", "traces", "frontends", "codegen",
        "analysis", "planning", "serving", "quant", "diagnosis", "measurement", "codesign", "optimization", "fleet",
        "view", "__init__", "cli", "__main__",
    )
]  # fmt: skip
RANK = {name: rank for rank, (_, names) in enumerate(LAYERS) for name in names}

# Slow to load, so imported only inside functions. Under `if TYPE_CHECKING` they cost nothing.
HEAVY = {"jinja2", "pandas", "matplotlib", "typer", "rich"}
HEAVY_ALLOWED = {"cli": {"typer", "rich"}}


@dataclass(frozen=True)
class Import:
    """One import: `source` imports `target`, both as dotted names of modules."""

    source: str
    target: str
    line: int
    in_function: bool
    type_checking: bool

    @property
    def internal(self) -> bool:
        return self.target.partition(".")[0] == PACKAGE

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}, imports {self.target}"


def entry(module: str) -> str:
    """The name under which a module stands in the table."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def layer(module: str) -> str:
    return LAYERS[RANK[entry(module)]][0]


def find_modules(root: Path) -> dict[str, Path]:
    """Dotted name to file, for each module of the package at `root`."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def import_nodes(
    nodes: Iterable[ast.AST], in_function: bool = False, type_checking: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, in_function, type_checking
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            yield from import_nodes(node.body, in_function, True)
            yield from import_nodes(node.orelse, in_function, type_checking)
        else:
            inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from import_nodes(ast.iter_child_nodes(node), inside, type_checking)


@cache
def read_imports(root: Path) -> list[Import]:
    """All imports of the package at `root`, each name of a from-import on its own."""
    modules = find_modules(root)
    found = []
    for source, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for node, in_function, type_checking in import_nodes([tree]):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                base = node.module or ""
                if node.level:
                    package = source.split(".")
                    up = node.level - (path.name == "__init__.py")
                    base = ".".join([*package[: len(package) - up], *([base] if base else [])])
                # `from package import name`: a module of the package, or else something in it.
                names = [f"{base}.{alias.name}" for alias in node.names]
                targets = [name if name in modules else base for name in names]
            for target in dict.fromkeys(targets):
                found.append(Import(source, target, node.lineno, in_function, type_checking))
    return found


def counted(imports: Iterable[Import]) -> list[Import]:
    """The imports that count for layers: internal ones, but for what `__init__` names for types."""
    return [i for i in imports if i.internal and not (i.source == PACKAGE and i.type_checking)]


def unknown_modules(root: Path) -> list[str]:
    return [name for name in find_modules(root) if entry(name) not in RANK]


def upward(imports: Iterable[Import]) -> list[str]:
    return [
        f"{i}: up from {layer(i.source)} to {layer(i.target)}"
        for i in counted(imports)
        if {entry(i.source), entry(i.target)} <= RANK.keys() and RANK[entry(i.target)] > RANK[entry(i.source)]
    ]


def find_circle(imports: Iterable[Import]) -> list[str]:
    """Modules that import each other in a circle, the first one again at the end; empty if none."""
    graph: dict[str, set[str]] = {}
    for i in counted(imports):
        if i.source != i.target:
            graph.setdefault(i.source, set()).add(i.target)
    done: set[str] = set()
    trail: list[str] = []

    def visit(module: str) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return []
        trail.append(module)
        for target in sorted(graph.get(module, ())):
            if circle := visit(target):
                return circle
        trail.pop()
        done.add(module)
        return []

    for module in sorted(graph):
        if circle := visit(module):
            return circle
    return []


def program_with_chip(imports: Iterable[Import]) -> list[str]:
    """Imports between what a program is (ir, ops) and what a chip is (hardware, which may use units and errors)."""
    program = {"ir", "ops"}
    return [
        str(i)
        for i in counted(imports)
        if (entry(i.source) in program and entry(i.target) == "hardware")
        or (entry(i.source) == "hardware" and (entry(i.target) == "ops" or i.target == "roofline.ir.graph"))
    ]


def eager_heavy(imports: Iterable[Import]) -> list[str]:
    found = []
    for i in imports:
        name = i.target.partition(".")[0]
        allowed = HEAVY_ALLOWED.get(entry(i.source), set())
        if name in HEAVY - allowed and not i.in_function and not i.type_checking:
            found.append(str(i))
    return found


def lines(found: Iterable[str]) -> str:
    return "".join(f"\n  {one}" for one in found)


# The package.


def test_there_are_modules() -> None:
    assert find_modules(SOURCE)


def test_every_module_is_in_the_table() -> None:
    unknown = unknown_modules(SOURCE)
    assert not unknown, (
        "modules in no layer; add each to LAYERS in tests/test_layers.py and to the table in "
        f"docs/architecture.md:{lines(unknown)}"
    )


def test_no_import_points_up() -> None:
    found = upward(read_imports(SOURCE))
    assert not found, f"imports that point up the layer table:{lines(found)}"


def test_no_circle() -> None:
    circle = find_circle(read_imports(SOURCE))
    assert not circle, f"modules import each other in a circle: {' -> '.join(circle)}"


def test_program_and_chip_stay_apart() -> None:
    found = program_with_chip(read_imports(SOURCE))
    assert not found, f"ir and ops know nothing of hardware, nor hardware of ops:{lines(found)}"


def test_heavy_libraries_are_imported_in_functions() -> None:
    found = eager_heavy(read_imports(SOURCE))
    assert not found, f"imports to move into the functions that need them:{lines(found)}"


# The checks themselves, on small packages.


def make(root: Path, **files: str) -> list[Import]:
    for name, text in files.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_imports.__wrapped__(root)


@pytest.mark.parametrize(
    "text",
    [
        "import roofline.analysis",
        "from roofline.analysis import analysis",
        "from roofline import analysis",
        "from . import analysis",
        "from .analysis import analysis",
        "def f():\n    from roofline.analysis import analysis",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from roofline.analysis import E",
        "try:\n    import roofline.analysis\nexcept ImportError:\n    pass",
    ],
)
def test_upward_imports_are_seen(tmp_path: Path, text: str) -> None:
    assert upward(make(tmp_path, analysis="", counting=text))
    assert not upward(make(tmp_path, counting="", analysis=text.replace("analysis", "counting")))


def test_names_of_the_package_itself_are_upward(tmp_path: Path) -> None:
    assert upward(make(tmp_path, __init__="Estimate = 1", counting="from roofline import Estimate"))


def test_order_in_the_lowest_layer(tmp_path: Path) -> None:
    assert upward(make(tmp_path, ir="import roofline.ops", ops=""))
    assert upward(make(tmp_path, ir="", ops="import roofline.hardware", hardware=""))


def test_relative_imports_in_packages(tmp_path: Path) -> None:
    files = {
        "hardware": "",
        "programs/__init__": "from . import dense",
        "programs/dense": "from ..hardware import Chip",
    }
    found = {(i.source, i.target) for i in make(tmp_path, **files)}
    assert found == {
        ("roofline.programs", "roofline.programs.dense"),
        ("roofline.programs.dense", "roofline.hardware"),
    }


def test_circles_are_seen(tmp_path: Path) -> None:
    late = "def f():\n    import roofline.ops"
    imports = make(tmp_path, ops="import roofline.counting", counting="import roofline.programs", programs=late)
    circle = ["roofline.counting", "roofline.programs", "roofline.ops", "roofline.counting"]
    assert find_circle(imports) == circle
    assert not find_circle(make(tmp_path, programs=""))


def test_types_of_the_package_itself_are_free(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from roofline.view import plot"
    imports = make(tmp_path, __init__=text, view="import roofline")
    assert not find_circle(imports)


def test_unknown_modules_are_seen(tmp_path: Path) -> None:
    make(tmp_path, helpers="", ir="")
    assert unknown_modules(tmp_path) == ["roofline.helpers"]


def test_program_with_chip_is_seen(tmp_path: Path) -> None:
    imports = make(tmp_path, hardware="import roofline.ops", ops="from roofline.hardware import Chip")
    assert len(program_with_chip(imports)) == 2


def test_eager_imports_are_seen(tmp_path: Path) -> None:
    late = "def f():\n    import pandas"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas"
    imports = make(tmp_path, view="import matplotlib.pyplot as plt", cli="import typer, rich", analysis=late)
    assert [i.partition(",")[0] for i in eager_heavy(imports)] == ["roofline.view"]
    imports = make(tmp_path, view=typed, cli="import pandas", analysis="class A:\n    import rich")
    assert [i.partition(",")[0] for i in eager_heavy(imports)] == ["roofline.analysis", "roofline.cli"]
