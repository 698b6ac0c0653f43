"""What the README and the notebooks show works as pasted."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from profiles import LONG

from roofline.cli import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


PAGES = [
    ROOT / "docs" / f"{name}.md"
    for name in ("import-torch", "import-jax", "graph", "diagnosis", "what-if", "fusion", "rewriting", "quantization",
                 "prune", "shard", "clusters", "serving", "compare", "training")
]  # fmt: skip


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(code: str, where: str) -> None:
    """Run a block, unless it needs a framework that is not installed."""
    for framework in re.findall(r"^import (torch|jax|onnx)\b", code, re.MULTILINE):
        pytest.importorskip(framework)
    exec(compile(code, where, "exec"), {})


@pytest.mark.parametrize("code", blocks("python"))
def test_readme_python_runs(code: str) -> None:
    run(code, "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_of_the_pages_runs(page: Path) -> None:
    found = blocks("python", page.read_text(encoding="utf-8"))
    assert found
    for code in found:
        run(code, page.name)


def test_sessions_of_the_page_on_chips_print_what_they_show() -> None:
    session = doctest.DocTestParser()
    for code in blocks("python", (ROOT / "docs" / "chips.md").read_text(encoding="utf-8")):
        run_ = doctest.DocTestRunner()
        assert run_.run(session.get_doctest(code, {}, "chips.md", None, 0)).attempted
        assert not run_.failures


@pytest.mark.parametrize("name", ["graph", "command-line"])
def test_commands_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    scripts = [code for code in blocks("python", text) if code.startswith("# mlp.py")]
    (tmp_path / "mlp.py").write_text("".join(scripts), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for line in commands(text):
        assert main(shlex.split(line.partition("|")[0])[1:]) == 0


def test_tables_of_the_page_on_what_ifs_are_what_the_library_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the time model: ``python benchmarks/whatif_tables.py --write``."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    tables = importlib.import_module("whatif_tables")
    text = tables.PAGE.read_text(encoding="utf-8")
    assert tables.page(text) == text


def commands(text: str = README) -> list[str]:
    """The command lines of a page; calibrate, which measures this machine for half a minute, in long runs alone.

    Not beside another worker either: a machine that others keep busy is refused (scripts/test runs it by itself).
    """
    measures = LONG and "PYTEST_XDIST_WORKER" not in os.environ
    lines = [line.partition("#")[0].strip() for block in blocks("sh", text) for line in block.splitlines()]
    return [line for line in lines if line.startswith("roofline ") and (measures or " calibrate " not in line)]


@pytest.mark.parametrize("line", commands())
def test_readme_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlp.toml").write_text(blocks("toml")[0], encoding="utf-8")
    rows = 'op,dtype,shape\ngemm,bf16,"{""m"": 64, ""n"": 4096, ""k"": 4096}"\n'
    (tmp_path / "rows.csv").write_text(rows, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    # 41 ms is slow, which check says with exit code 1.
    assert main(shlex.split(line)[1:]) == (1 if " check " in line else 0)


DIAGNOSIS = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", commands(DIAGNOSIS))
def test_commands_of_the_diagnosis_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in zip(("sweep.csv", "ops.csv"), blocks("csv", DIAGNOSIS), strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    # The attention of the example is slow and one of the operators impossible: exit code 1.
    assert main(shlex.split(line)[1:]) == (1 if line.split()[1] in ("check", "ops") else 0)


def test_readme_has_commands_for_the_four_questions() -> None:
    assert {line.split()[1] for line in commands()} >= {"estimate", "check", "batch", "plot"}


def test_readme_has_commands_for_tables_and_machines() -> None:
    assert {line.split()[1] for line in commands()} >= {"predict", "validate"}
    assert "roofline calibrate " in README


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(path.name), "exec"), names)


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
