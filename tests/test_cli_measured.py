"""roofline sweep and roofline ops: several measured times at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roofline.cli.commands import app

#: https://discuss.pytorch.org/t/149385
SWEEP = "batch,time_ms\n5,15.91\n30,15.02\n50,17.63\n100,33.46\n200,61.5\n400,119.85\n"
OPS = "op,dtype,m,n,k,time_us\n" + "".join(f"gemm,bf16,4096,4096,4096,{time}\n" for time in (190, 900, 30))


def run(*args: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, [str(arg) for arg in args])
    return found.exit_code, found.output


def write(folder: Path, text: str) -> Path:
    path = folder / "times.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_sweep_is_read(tmp_path: Path) -> None:
    code, out = run("sweep", write(tmp_path, SWEEP))
    assert code == 0
    assert out.startswith("normal: ")
    assert max(map(len, out.splitlines())) <= 80
    data = json.loads(run("sweep", write(tmp_path, SWEEP), "--json")[1])
    assert data["knee_batch"] == pytest.approx(52.1, rel=0.1)
    assert data["marginal_s"] == pytest.approx(0.288e-3, rel=0.01)


def test_a_sweep_beside_its_program(tmp_path: Path) -> None:
    data = json.loads(run("sweep", write(tmp_path, SWEEP), "resnet50", "t4", "--dtype", "fp16", "--json")[1])
    assert [row["expected_s"] > 0 for row in data["rows"]] == [True] * 6
    assert data["comparison"]


def test_operators_are_judged_the_most_lost_first(tmp_path: Path) -> None:
    code, out = run("ops", write(tmp_path, OPS), "h100-sxm")
    assert code == 1, "one of them is impossible"
    assert max(map(len, out.splitlines())) <= 80
    data = json.loads(run("ops", write(tmp_path, OPS), "h100-sxm", "--json")[1])
    assert [(row["row"], row["verdict"]) for row in data["rows"]] == [
        (2, "slow"), (1, "as_expected"), (3, "impossible"),
    ]  # fmt: skip
    assert run("ops", write(tmp_path, OPS), "h100-sxm", "--csv")[1].count("\n") == 4
