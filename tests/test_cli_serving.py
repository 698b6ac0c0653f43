"""roofline scaling and roofline request on the command line: the library's numbers, and one line for what cannot be."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from command_line import Run, fails

import roofline as rl

DECODE = ("--phase", "decode", "-B", 4, "-S", 512, "--mode", "graph")


def test_scaling_has_the_librarys_numbers(run: Run) -> None:
    result = run("scaling", "llama-3-8b", "h100-sxm", "--devices", "1,2,3,4", *DECODE, "--json").data
    same = rl.scaling("llama-3-8b", "h100-sxm", (1, 2, 3, 4), phase="decode", mode="graph", batch=4, context=512)
    assert [row["time_s"] for row in result["rows"]] == [point.time for point in same.points]
    assert [row["devices"] for row in result["rows"]] == [1, 2, 4]
    assert "cannot" in result["skipped"]["3"] or "3" in result["skipped"]["3"]
    assert result["stops_paying"] == same.stops_paying


def test_scaling_says_where_more_devices_stop_paying(run: Run) -> None:
    out = run("scaling", "gpt2", "h100-sxm", "--devices", "1,2", *DECODE, "--least-gain", "90%").out
    assert "beyond 1 devices the next step saves less than 90%" in out
    assert "every step pays" not in run("scaling", "gpt2", "h100-sxm", "--devices", "1", *DECODE).out


def test_a_request_has_the_librarys_numbers(run: Run) -> None:
    sizes = ("--prompt", 64, "--new-tokens", 20, "-B", 2, "--block", 16)
    record = run("request", "gpt2", "h100-sxm", *sizes, "--json").data
    same = rl.serving.request("gpt2", "h100-sxm", prompt=64, new_tokens=20, batch=2, block=16)
    assert record["time_s"] == same.time
    assert record["mode"] == "graph"
    assert [row["time_s"] for row in record["rows"]] == same.token_times.tolist()
    out = run("request", "gpt2", "h100-sxm", *sizes).out
    assert "first token" in out
    assert "per token" in out
    assert "fits" in out


def test_a_server_has_the_librarys_numbers(run: Run) -> None:
    sizes = ("--prompt", 64, "--new-tokens", 20, "--concurrency", "1..12", "--tpot", "600us", "--price", 2)
    record = run("serve", "gpt2", "h100-sxm", *sizes, "--tp", 2, "--json").data
    same = rl.serving.serve("gpt2", "h100-sxm", prompt=64, new_tokens=20, concurrency=[1, 2, 4, 8, 12], tpot="600 us",
                            price=2, tp=2)  # fmt: skip
    assert [row["tpot_s"] for row in record["rows"]] == same.tpot.tolist()
    assert record["best"] == same.record()["best"]
    assert (record["layout"]["tp"], record["limits"]) == (2, {"ttft_s": None, "tpot_s": 600e-6})
    assert "at 300 W a chip" in run("serve", "gpt2", "h100-sxm", *sizes, "--watts", 300).out
    out = run("serve", "gpt2", "h100-sxm", *sizes).out
    assert all(words in out for words in ("all at once", "cost/M", "allowed", "most allowed", "kWh a million"))
    elsewhere = run("serve", "gpt2", "h100-sxm", *sizes, "--prefill-chip", "l4", "--servers", "2:1").out
    assert "read by 2 x 1 l4" in elsewhere
    assert "endless" in run("serve", "gpt2", "h100-sxm", *sizes[:4], "--qps", "1,1e6").out


def test_a_table_of_deployments_row_by_row(run: Run, tmp_path: Path) -> None:
    table, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    table.write_text(
        "model_path,system,backend,isl,osl,batch_size,note\ngpt2,h100_sxm,vllm,100,20,4,a\nno,h100_sxm,vllm,1,2,1,b\n"
    )
    result = run("serve", "--bench", table, "-o", out)
    assert result.code == 1
    assert "1 row could not be predicted, 1 of them: no is not known" not in result.err
    good, bad = csv.DictReader(out.read_text().splitlines())
    same = rl.serving.bench(table).tpot_ms[0]
    assert (good["note"], float(good["tpot_ms"]), good["error"]) == ("a", pytest.approx(same, rel=1e-4), "")
    assert (bad["tpot_ms"], bad["ttft_ms"]) == ("", "")
    assert "is not known" in bad["error"]
    fails(run("serve", "gpt2", "--bench", table), "--bench", "leave MODEL out")
    fails(run("serve", "--bench", table, "--json", "--price", 3), "leave --price, --json out")
    fails(run("serve", "gpt2", "h100-sxm", "-o", out), "--bench FILE.csv")
    fails(run("serve", "gpt2"), "no CHIP", "--bench FILE.csv")
    fails(run("serve", "--bench", tmp_path / "none.csv"), "none.csv")


def test_a_request_takes_passes_and_layouts(run: Run) -> None:
    sizes = ("--prompt", 64, "--new-tokens", 2)
    plain, narrow, halved = (
        run("request", "gpt2", "h100-sxm", *sizes, *more, "--json").data["memory_bytes"]["weights"]
        for more in ((), ("--weights", "int8"), ("--tp", 2))
    )
    assert narrow < plain > halved


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("scaling", "gpt2", "h100-sxm", *DECODE, "--tp", 2), ("--tp does not apply", "--devices")),
        (("scaling", "gpt2", "h100-sxm", *DECODE, "--devices", "none"), ("--devices", "whole numbers")),
        (("scaling", "gpt2", "h100-sxm", *DECODE, "--least-gain", "3 s"), ("--least-gain",)),
        (("scaling", "gpt2", "h100-sxm", "--phase", "decode", "-B", "1,2", "-S", 64), ("one point", "-B")),
        (("request", "gpt2", "h100-sxm", "--prompt", 8), ("--new-tokens",)),
        (("request", "gpt2", "h100-sxm", "--prompt", 8, "--new-tokens", 0), ("--new-tokens",)),
        (("request", "gpt2", "h100-sxm", "--prompt", 8, "--new-tokens", 8, "--phase", "decode"), ("--phase",)),
        (("request", "resnet50", "h100-sxm", "--prompt", 8, "--new-tokens", 8), ("no phase",)),
        (("serve", "t5-small", "h100-sxm", "--prompt", 8, "--new-tokens", 8), ("no language model",)),
        (("serve", "gpt2", "h100-sxm", "--prompt", 8, "--new-tokens", 8, "--concurrency", "9..1"), ("--concurrency",)),
        (("serve", "gpt2", "h100-sxm", "--prompt", 8, "--new-tokens", 8, "--qps", "fast"), ("--qps",)),
        (("serve", "gpt2", "h100-sxm", "--prompt", 8, "--new-tokens", 8, "--servers", "2"), ("--servers", "X:Y")),
        (("serve", "gpt2", "h100-sxm", "--prompt", 8, "--new-tokens", 8, "--ttft", "2"), ("2s",)),
        (("cache", "gpt2", "h100-sxm", "--prompt", 8, "--new-tokens", 8, "--offload", "-1GiB"), ("--offload -1GiB",)),
    ],
)
def test_what_cannot_be_is_one_line(run: Run, args: tuple[object, ...], words: tuple[str, ...]) -> None:
    fails(run(*args), *words)


@pytest.mark.parametrize("columns", [40, 52, 60, 72, 80, 100, 140])
def test_no_figure_is_cut_off(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a terminal is narrow, heads are broken and columns left out; what is shown has its digits and units."""
    from rich.console import Console

    from roofline.cli.tables import table

    monkeypatch.setenv("COLUMNS", str(columns))
    heads = "requests/s|first token|?p50|p90|p99|per token|p99|tokens/s|within limits"
    rows = [["2.398", "346 ms", "239 ms", "595 ms", "889 ms", "31.7 ms", "48.6 ms", "1,180", "99.3%"]]
    console = Console(width=columns)
    with console.capture() as printed:
        console.print(table(heads, rows))
    lines = printed.get().splitlines()
    figures = next(line for line in lines if "2.398" in line)
    shown = [cell for cell in rows[0] if cell in figures]
    assert len(shown) >= 4
    assert figures.split() == " ".join(shown).split()
    words = {"requests/s", "first", "token", "p50", "p90", "p99", "per", "tokens/s", "within", "limits", "─"}
    assert {word for line in lines[: lines.index(figures)] for word in line.replace("─", " ").split()} <= words


def test_a_model_has_the_positions_of_the_whole_request() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"context \(C\)=1,099: gpt2 has 1,024 positions"):
        rl.serving.serve("gpt2", "h100-sxm", prompt=900, new_tokens=200)


def test_formats_that_change_nothing_are_not_said_to_be_stored() -> None:
    asked = rl.serving.deployment("deepseek-v3", "h200-sxm", tp=8, weights="int8")
    assert asked.layout == "tp 8, weights as the model's, not int8"
    assert rl.serving.deployment("deepseek-v3", "h200-sxm", tp=8, weights="fp8").layout == "tp 8, weights fp8"
    notes = rl.what_if("deepseek-v3", phase="decode", weights="int8").info.notes
    assert "weights int8: what is stored is as narrow already and stays" in notes
