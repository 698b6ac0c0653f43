"""roofline compare: chips side by side on the command line."""

from __future__ import annotations

import csv
import io
import json

import pytest
from typer.testing import CliRunner

import roofline as rl
from roofline.cli.commands import app

DECODE = ("--phase", "decode", "-S", "2048", "--mode", "graph")


def run(*args: object) -> str:
    found = CliRunner().invoke(app, ["compare", *(str(arg) for arg in args)])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.stdout


def test_tables_fit_the_screen() -> None:
    names = "h100-sxm,a100-80gb-sxm,rtx-pro-6000-server,tpu-v5e,cloud-ai-100-ultra-soc"
    for batches in ("1", "1,64"):
        out = run("llama-3-8b", "--chips", names, "-B", batches, *DECODE)
        assert max(map(len, out.splitlines())) <= 80
        assert "how many times faster with" in out
        assert "does not fit: needs 16.24 GiB, has 16.00 GiB" in out
        assert "no published bf16 matmul" in out


def test_numbers_are_the_librarys() -> None:
    data = json.loads(run("llama-3-8b", "--chips", "h100-sxm,l4", "-B", "1,4", *DECODE, "--json"))
    graph = rl.model("llama-3-8b", phase="decode")
    times = rl.estimate(graph, ["h100-sxm", "l4"], mode="graph", B=[1, 4], C=2048).time
    assert [row["time_s"] for row in data["rows"]] == pytest.approx(list(times.ravel()))
    assert data["best_chip"] == "h100-sxm"
    assert data["rows"][0]["elasticity"]["memory_bandwidth"] > 0.5


def test_csv_has_a_row_a_chip_and_batch() -> None:
    rows = list(csv.DictReader(io.StringIO(run("gpt2", "--chips", "h100-sxm,grayskull-e150", "-S", 64, "--csv"))))
    assert [row["chip"] for row in rows] == ["h100-sxm", "grayskull-e150"]
    assert float(rows[0]["what_if_bandwidth x2_speedup"]) >= 1
    assert rows[1]["time_s"] == ""


def test_formats_are_taken() -> None:
    plain, narrow = (
        json.loads(run("llama-3-8b", "--chips", "h100-sxm", *DECODE, *more, "--json"))["rows"][0]["time_s"]
        for more in ((), ("--weights", "int8"))
    )
    assert narrow < plain


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ("gpt2", "--chips", "h100-sxm", "-B", "1,2", "-S", "8,16"),
            "one size may be several numbers; given -B and -S",
        ),
        (("gpt2", "--chips", "h100-sxm", "-S", "8", "--json", "--csv"), "--json and --csv exclude each other"),
        (("gpt2", "--chips", "h100-sxm"), "needs a sequence length"),
        (("gpt2", "--chips", "h100", "-S", "8", "--mode", "egaer"), "egaer|h100"),
    ],
)
def test_what_cannot_be_asked_is_refused(args: tuple[str, ...], says: str) -> None:
    with pytest.raises(rl.RooflineError, match=says):
        run(*args)
