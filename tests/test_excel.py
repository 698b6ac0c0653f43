"""Workbooks of Excel: text stays text, numbers are numbers with their unit in the head, and a file is whole."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fails
from made_traces import Made, chain

import roofline as rl
from roofline.ir import excelfile
from roofline.ir.excelfile import write_excel

openpyxl = pytest.importorskip("openpyxl")
ROOT = Path(__file__).resolve().parent.parent
TRACE = ROOT / "examples" / "block_before.json.gz"


def sheet(path: Path, rows: list[dict[str, Any]]) -> Any:
    write_excel(path, {"rows": rows})
    return openpyxl.load_workbook(path)["rows"]


@pytest.mark.parametrize(
    "text", ["=1+1", '=HYPERLINK("http://x")', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|'/C'!A0"]
)
def test_text_that_looks_like_a_formula_is_text(tmp_path: Path, text: str) -> None:
    cell = sheet(tmp_path / "x.xlsx", [{"op": text}])["A2"]
    assert cell.data_type == "s"
    assert cell.number_format == "@"
    assert cell.quotePrefix
    assert cell.value.lstrip("\t\\r") == text.lstrip("\t\r")


def test_a_key_that_looks_like_a_formula_is_text(tmp_path: Path) -> None:
    assert sheet(tmp_path / "x.xlsx", [{"=1+1": 1}])["A1"].data_type == "s"


def test_numbers_are_numbers_and_heads_name_units(tmp_path: Path) -> None:
    row = {"time_s": 1.25e-6, "bytes": 2**40, "flops_per_s": 9.1e14, "share": 0.25, "batch": 8, "fits": True}
    made = sheet(tmp_path / "x.xlsx", [row])
    heads, values = ([cell.value for cell in line] for line in made.iter_rows())
    assert heads == ["time [s]", "bytes [B]", "flops [FLOP/s]", "share", "batch", "fits"]
    assert values == list(row.values())
    assert [cell.data_type for cell in made[2]] == ["n", "n", "n", "n", "n", "b"]
    assert made["D2"].number_format == "0.0%"


def test_what_is_not_known_is_empty(tmp_path: Path) -> None:
    made = sheet(tmp_path / "x.xlsx", [{"a": None, "b": math.nan, "c": math.inf, "d": 1}, {"e": "only here"}])
    assert [cell.value for cell in made[2]] == [None, None, None, 1, None]
    assert made["E3"].value == "only here"


def test_a_head_that_stays_filters_and_widths(tmp_path: Path) -> None:
    made = sheet(tmp_path / "x.xlsx", [{"op": "x" * 30, "long": "y" * 500, "n": 1}] * 3)
    assert made.freeze_panes == "A2"
    assert made.auto_filter.ref == "A1:C4"
    assert made["A1"].font.bold
    widths = [made.column_dimensions[name].width for name in "ABC"]
    assert widths == [31, 60, 8]


def test_what_a_cell_cannot_hold(tmp_path: Path) -> None:
    made = sheet(tmp_path / "x.xlsx", [{"op": "a\x00b\x1b[31m", "long": "z" * 40_000}])
    assert made["A2"].value == "a\\x00b\\x1b[31m"
    assert len(made["B2"].value) == excelfile.MAX_TEXT


def test_more_rows_than_a_sheet_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excelfile, "MAX_ROWS", 5)
    made = sheet(tmp_path / "x.xlsx", [{"n": n} for n in range(10)])
    assert [row[0] for row in made.iter_rows(values_only=True)] == [
        "n", 0, 1, 2, "7 more rows than a sheet has room for",
    ]  # fmt: skip
    assert [row[0] for row in sheet(tmp_path / "x.xlsx", [{"n": n} for n in range(4)]).iter_rows(values_only=True)] == [
        "n", 0, 1, 2, 3,
    ]  # fmt: skip


def test_names_of_sheets(tmp_path: Path) -> None:
    write_excel(tmp_path / "x.xlsx", {"a/b*" + "c" * 40: [{"n": 1}], "none": []})
    assert openpyxl.load_workbook(tmp_path / "x.xlsx").sheetnames == ["a_b_" + "c" * 27]
    write_excel(tmp_path / "y.xlsx", {})
    assert openpyxl.load_workbook(tmp_path / "y.xlsx").sheetnames == ["empty"]


def test_a_trace_as_a_workbook(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "k.xlsx"
    data = run("trace", TRACE, "--xlsx", path, "--json").data
    book = openpyxl.load_workbook(path)
    assert book.sheetnames == ["operators", "kernels", "causes", "idle", "memory at the peak", "memory", "about"]
    tables = {
        one.title: [dict(zip(head, row, strict=True)) for row in rows]
        for one in book
        for head, *rows in [list(one.iter_rows(values_only=True))]
    }
    assert [row["op"] for row in tables["operators"]] == [row["op"] for row in data["rows"]]
    assert [row["time [s]"] for row in tables["operators"]] == pytest.approx([row["time_s"] for row in data["rows"]])
    assert sum(row["time [s]"] for row in tables["causes"]) == pytest.approx(data["time_s"])
    assert sum(row["time [s]"] for row in tables["idle"]) == pytest.approx(data["idle_s"])
    assert sum(row["bytes [B]"] for row in tables["memory at the peak"]) == data["memory_peak"]["peak_bytes"]
    kernels = rl.diagnosis.trace_report(TRACE).kernels
    assert [row["kernel"] for row in tables["kernels"]] == [row.kernel for row in kernels.rows]
    assert sum(row["share"] for row in tables["kernels"]) == pytest.approx(1)


def test_names_of_a_trace_that_mean_harm(run: Run, tmp_path: Path) -> None:
    trace = chain(Made(), [("=cmd|' /C calc'!A0", None, 10.0, {"kernel": "@evil"})]).write(tmp_path)
    run("trace", trace, "--xlsx", tmp_path / "x.xlsx")
    book = openpyxl.load_workbook(tmp_path / "x.xlsx")
    assert {cell.data_type for one in book for row in one.iter_rows() for cell in row} <= {"s", "n", "b"}


def test_the_kernels_of_a_trace(run: Run, tmp_path: Path) -> None:
    calls = [("aten::mm", [[64, 64]] * 2, 30.0, {"kernel": "gemm"}),
             ("aten::relu", [[64, 64]], 10.0, {"kernel": "gemm"}),
             ("aten::add", [[64, 64]] * 2, 60.0, {"kernel": "void at::add_kernel<float>(int)"})]  # fmt: skip
    trace = chain(Made(), calls).write(tmp_path)
    first, second = run("trace", trace, "--kernels", "--json").data["rows"]
    assert first["kernel"] == "void at::add_kernel<float>(int)"
    assert (second["kernel"], second["op"], second["launches"]) == ("gemm", "aten::mm, aten::relu", 2)
    assert (second["time_s"], second["mean_s"], second["share"]) == pytest.approx((40e-6, 20e-6, 0.4))
    assert len(run("trace", trace, "--kernels", "--csv").out.splitlines()) == 3
    assert "add_kernel" in run("trace", trace, "--kernels").out
    fails(run("trace", trace, trace, "--diff", "--kernels"), "--kernels is of one trace")


@pytest.mark.parametrize(
    ("call", "sheets"),
    [
        ("estimate gpt2 h100-sxm --phase decode -B 1,8 -S 512", ["rows", "about"]),
        ("chips h100-sxm", ["rows", "about"]),
        ("graph resnet18 -B 1", ["rows", "about"]),
        (f"trace {TRACE} {TRACE} --diff", ["operators", "parts", "about"]),
        (f"trace {ROOT / 'examples' / 'two_ranks'}", ["ranks", "collectives", "about"]),
    ],
)  # fmt: skip
def test_every_command_with_rows(run: Run, tmp_path: Path, call: str, sheets: list[str]) -> None:
    path = tmp_path / "x.xlsx"
    result = run(*call.split(), "--xlsx", path)
    assert result.code == 0
    assert result.out == run(*call.split()).out
    assert openpyxl.load_workbook(path).sheetnames == sheets


def test_without_openpyxl(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    fails(run("trace", TRACE, "--xlsx", tmp_path / "x.xlsx"), "pip install 'roofline[excel]'")
    assert not (tmp_path / "x.xlsx").exists()


def test_where_nothing_can_be_written(run: Run, tmp_path: Path) -> None:
    fails(run("trace", TRACE, "--xlsx", tmp_path / "no" / "x.xlsx"), "no")
