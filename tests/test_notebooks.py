"""Notebooks run from a clean state, and what they print is what they keep."""

from __future__ import annotations

import importlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from profiles import LONG

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
#: What a cell imports that is not always installed.
OPTIONAL = ("torch",)


def cells(path: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return listed


def is_measured(cell: dict[str, Any]) -> bool:
    return "measured" in cell["metadata"].get("tags", ())


@pytest.fixture
def notebooks(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("nbclient")
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    return importlib.import_module("notebooks")


def need_what_it_imports(path: Path) -> None:
    for name in OPTIONAL:
        if any(f"import {name}" in "".join(cell["source"]) for cell in cells(path)):
            pytest.importorskip(name)


@pytest.mark.skipif(LONG, reason="they run in kernels of their own")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quickly: in this process, without what measures the machine."""
    need_what_it_imports(path)
    monkeypatch.chdir(path.parent)
    names: dict[str, Any] = {}
    for cell in cells(path):
        if cell["cell_type"] == "code" and not is_measured(cell):
            exec(compile("".join(cell["source"]), path.name, "exec"), names)


@pytest.mark.skipif(not LONG, reason="takes a kernel each")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_prints_what_it_keeps(path: Path, notebooks: Any) -> None:
    need_what_it_imports(path)
    logging.disable(logging.WARNING)
    kept = notebooks.nbformat.read(path, as_version=4)
    assert list(notebooks.differences(kept, notebooks.run(path))) == []


def test_every_cell_has_run_and_none_has_failed() -> None:
    assert len(NOTEBOOKS) >= 8
    for path in NOTEBOOKS:
        code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), path.name
        assert all(output["output_type"] != "error" for cell in code for output in cell["outputs"]), path.name
        assert path.stat().st_size < 1e6, path.name


def test_a_difference_is_told(notebooks: Any) -> None:
    kept = notebooks.nbformat.read(NOTEBOOKS[0], as_version=4)
    other = notebooks.nbformat.read(NOTEBOOKS[0], as_version=4)
    at = next(i for i, cell in enumerate(other.cells) if notebooks.texts(cell) not in ([], [""]))
    other.cells[at].outputs = []
    assert len(list(notebooks.differences(kept, other))) == 1
    other.cells[at].metadata["tags"] = kept.cells[at].metadata["tags"] = ["measured"]
    assert list(notebooks.differences(kept, other)) == []
