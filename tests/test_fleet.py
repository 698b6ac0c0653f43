"""Fleets: what a folder holds, rows as single estimates give them, files that are whole, runs that go on, deaths."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import Run
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import LONG, examples

import roofline as rl
from roofline.fleet import Fleet, Question, read, run
from roofline.fleet.question import entries, keys

pytest.importorskip("pyarrow")

#: A config as Hugging Face writes them.
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}  # fmt: skip
FAST = Question(batches=(1, 8), gains=False, mode="graph", seq=128)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name, config in (
        ("a", CONFIG),
        ("b/config", CONFIG | {"num_hidden_layers": 3}),
        ("bad", {"model_type": "nosuch"}),
    ):
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))
    (folder / "b" / "tokenizer.json").write_text("{}")
    (folder / "script.py").write_text("raise SystemExit('a fleet runs no code')")
    (folder / "list.txt").write_text("gpt2  # a shipped one\n\na.json\n")
    return folder


def test_a_folder_a_list_and_names_are_programs(models: Path) -> None:
    assert [entry.name for entry in entries(models)] == ["a", "bad", "b"]
    assert [entry.name for entry in entries([models / "list.txt", "gpt2"])] == ["gpt2", "a"]
    with pytest.raises(rl.errors.UsageError, match=r"script\.py: a script, which a fleet does not run"):
        entries(models / "script.py")
    (models / "none").mkdir()
    with pytest.raises(rl.errors.UsageError, match="no program in"):
        entries(models / "none")


def test_a_row_is_what_an_estimate_says_and_a_bad_file_is_a_row(models: Path, tmp_path: Path) -> None:
    fleet = run(models, ["l4", "t4"], tmp_path / "out", FAST, workers=0)
    assert fleet.summary()["programs"] == 3
    assert {row["model"] for row in fleet.failed} == {"bad"}
    assert all("nosuch" in row["error"] for row in fleet.failed)
    row = next(row for row in fleet.rows if (row["model"], row["chip"], row["batch"]) == ("a", "t4", 8))
    est = rl.estimate(str(models / "a.json"), "t4", mode="graph", batch=8, seq=128)
    figures = {"time_s": est.time, "low_s": est.low, "high_s": est.high, "floor_s": est.floor, "bound": est.bound,
               "memory_bytes": est.memory.total, "items_per_s": est.throughput, "mfu": est.mfu,
               "mbu": est.mbu}  # fmt: skip
    assert row["bound"] == figures.pop("bound")
    assert {name: row[name] for name in figures} == pytest.approx(figures, rel=1e-12)


def test_what_is_there_is_not_worked_out_again(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, worked = tmp_path / "out", list[str]()
    from roofline.fleet import task

    real = task.rows_of
    monkeypatch.setattr(task, "rows_of", lambda job, *rest: worked.append(job.entry.name) or real(job, *rest))
    first = run(models, ["l4"], out, FAST, workers=0)
    assert worked == ["a", "bad", "b"]
    assert run(models, ["l4"], out, FAST, workers=0).rows == first.rows
    assert worked == ["a", "bad", "b"]
    run(models, ["l4", "t4"], out, FAST, workers=0)  # the other chip alone
    assert len(worked) == 6
    (models / "a.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 4}))
    changed = run(models, ["l4", "t4"], out, FAST, workers=0)
    assert worked[6:] == ["a"]
    times = [next(row["time_s"] for row in fleet.rows if row["model"] == "a") for fleet in (first, changed)]
    assert times[1] > times[0]
    assert read(out).rows == changed.rows  # what it was before the change no longer counts


def test_a_stop_loses_no_more_than_what_runs(models: Path, tmp_path: Path) -> None:
    def stop(share: float) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    part = run(models, ["l4"], out, FAST, workers=0, progress=stop)
    assert part.interrupted
    assert {row["model"] for row in part.rows} == {"a"}
    whole = run(models, ["l4"], out, FAST, workers=0)
    assert not whole.interrupted
    assert {row["model"] for row in whole.rows} == {"a", "b", "bad"}
    assert not list(out.glob(".part*"))


def test_limits_choose_the_batch_that_is_best_within_them(tmp_path: Path) -> None:
    limits = ("latency=2ms", "memory=1GiB", "latency=1ns")
    question = Question(limits=limits, gains=False, mode="graph", seq=64, phases=("decode",))
    fleet = run("gpt2", "h100-sxm", tmp_path, question, workers=0)
    by = {row["under"]: row for row in fleet.rows}
    assert by["latency=2ms"]["time_s"] <= 2e-3
    assert by["latency=2ms"]["limit"] == "latency"
    assert by["memory=1GiB"]["batch"] is None  # the reserve alone takes it
    assert by["latency=1ns"]["time_s"] is None
    assert len(fleet.unmet) == 2
    assert not fleet.failed
    best = rl.best_batch("gpt2", "h100-sxm", phase="decode", mode="graph", context=64, latency_limit="2 ms")
    assert by["latency=2ms"]["items_per_s"] > 0.9 * float(best.estimate.throughput)


def test_gains_are_what_the_estimate_of_the_change_time_says(tmp_path: Path) -> None:
    fleet = run("gpt2", "h100-sxm", tmp_path, Question(phases=("decode",), seq=256), workers=0)
    (row,) = fleet.rows
    compiled = rl.estimate("gpt2", "h100-sxm", phase="decode", mode="compiled", batch=1, context=256)
    assert row["run_s"] == pytest.approx(compiled.time, rel=1e-12)
    assert row["option"] == "--mode compiled"
    assert row["potential_s"] <= row["change_time_s"] == min(row["run_s"], row["formats_s"], row["kernels_s"])
    # The host's time hides what formats save alone; together with a compiled run they count.
    half = rl.passes.cast(rl.model("gpt2", phase="decode"), "bf16")
    assert row["potential_s"] <= rl.estimate(half, "h100-sxm", mode="compiled", batch=1, context=256).time


def test_what_does_not_fit_has_no_rank(tmp_path: Path) -> None:
    fleet = run(["gpt2", "llama-3-8b"], ["t4"], tmp_path, Question(gains=False, seq=64), workers=0)
    assert [row["model"] for row in fleet.ranked("lost")] == ["gpt2"]
    assert [row["model"] for row in fleet.too_large] == ["llama-3-8b"]
    assert fleet.summary()["answers"] == fleet.summary()["too_large"] == 1
    assert "do not fit in 17.2 GB" in rl.report(fleet).html()


def test_weights_rank_and_name_what_is_wrong(models: Path, tmp_path: Path) -> None:
    fleet = run(models, ["l4"], tmp_path / "out", FAST, workers=0)
    assert fleet.ranked("lost")[0]["model"] == "b"
    (tmp_path / "w.csv").write_text("model,weight\na,1000\nb,1\n")
    weighed = fleet.weighed(tmp_path / "w.csv")
    assert weighed.ranked("lost")[0]["model"] == "a"
    assert weighed.weighed({"b": 5}).rows == fleet.weighed({"b": 5}).rows
    for text, message in (("model\na\n", "no column 'weight'"), ("model,weight\na,-1\n", "a number from 0")):
        (tmp_path / "w.csv").write_text(text)
        with pytest.raises(rl.errors.UsageError, match=message):
            fleet.weighed(tmp_path / "w.csv")
    for wrong, message in (({"b": 1, "c": 2}, "model 'c' is not in this fleet"),
                           ("model,weight,chip\na,1,l44\n", "chip 'l44' is not in this fleet; did you mean l4"),
                           ("model,weight\na,1\na,2\n", "a stands there twice")):  # fmt: skip
        if isinstance(wrong, str):
            (tmp_path / "w.csv").write_text(wrong)
        with pytest.raises(rl.errors.UsageError, match=message):
            fleet.weighed(wrong if isinstance(wrong, dict) else tmp_path / "w.csv")
    assert replace(fleet, interrupted=True).weighed({"c": 2}).rows
    with pytest.raises(rl.errors.UsageError, match="allowed: gain, lost"):
        fleet.ranked("speed")


def test_a_batch_that_limits_choose_too_ranks_once(tmp_path: Path) -> None:
    question = Question(batches=(8,), limits=("latency=1s", "latency=20ms"), gains=False, mode="graph", seq=64)
    rows = run("gpt2", "h100-sxm", tmp_path, question, workers=0).rows
    best = next(row["batch"] for row in rows if row["under"] == "latency=20ms")
    again = Question(batches=(best,), limits=question.limits[1:], gains=False, mode="graph", seq=64)
    fleet = run("gpt2", "h100-sxm", tmp_path, again, workers=0)
    assert [(row["batch"], row["under"]) for row in fleet.ranked()] == [(best, "latency=20ms")]
    assert fleet.summary()["above_floor_s"] == fleet.ranked()[0]["lost"]
    batches = [row["batch"] for row in read(tmp_path).ranked("lost")]
    assert sorted(set(batches)) == sorted(batches)


def test_a_command_that_works_out_nothing_fails(tmp_path: Path, run: Run) -> None:
    common = ("--chips", "l4", "--workers", "0", "--no-gains", "-o", str(tmp_path / "out"))
    nothing = run("fleet", "nope", *common)
    assert nothing.code == 1
    assert "model 'nope' is not known" in nothing.err
    assert "what to optimise first" not in nothing.out
    refused = run("fleet", "gpt2", "--weights", "int9", *common)
    assert refused.code == 2
    assert "unknown number format 'int9'" in refused.err
    assert run("fleet", "gpt2", "nope", *common).code == 0


@given(st.lists(st.tuples(st.floats(1e-6, 10), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1e6)), max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_a_ranking_falls(rows: list[tuple[float, float, float, float]]) -> None:
    fleet = Fleet("x", tuple(
        {"model": str(at), "program_path": str(at), "chip": "c", "batch": 1, "time_s": time, "floor_s": time * floor,
         "fits": True, "potential_s": time * after, "program_weight": weight, "error": None}
        for at, (time, floor, after, weight) in enumerate(rows)
    ))  # fmt: skip
    for by in ("gain", "lost"):
        values = [row[by] for row in fleet.ranked(by)]
        assert values == sorted(values, reverse=True)
        assert all(value >= 0 for value in values)


def test_questions_say_what_is_wrong() -> None:
    for wrong, message in (
        ({"phases": ("decod",)}, "phase 'decod': allowed: forward, prefill, decode; did you mean"),
        ({"batches": ()}, "at least one batch"), ({"batches": (0,)}, "whole numbers from 1"),
        ({"limits": ("latency",)}, "expected latency=50ms"), ({"limits": ("latency=5",)}, "limit latency"),
        ({"limits": ("latency=-3ms",)}, "limits must be positive"), ({"limits": ("memory=0GiB",)}, "must be positive"),
        ({"mode": "fast"}, "allowed: eager, graph, compiled"), ({"weights": "int9"}, "unknown number format 'int9'"),
        ({"weights": "int8,head=int9"}, "'int9'"), ({"cache": "fp9"}, "'fp9'"), ({"dtype": "bf61"}, "mean bf16"),
    ):  # fmt: skip
        with pytest.raises(rl.errors.RooflineError, match=message):
            Question(**wrong)  # type: ignore[arg-type]
    with pytest.raises(rl.errors.UsageError, match="workers=-1"):
        run("gpt2", "l4", "/nonexistent/x" if os.name == "nt" else os.devnull + "-x", FAST, workers=-1)


def test_a_key_is_of_all_that_an_answer_depends_on(models: Path) -> None:
    entry, chips = entries(models / "a.json")[0], [rl.chip("l4"), rl.chip("l4").replace(l2="1MiB")]
    first = keys(entry, chips, FAST)
    assert len(set(first)) == 2
    assert first == keys(entry, chips, FAST)
    assert first != keys(entry, chips, Question())


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.UsageError, match="no results of a fleet"):
        read(tmp_path)
    (tmp_path / "part-x.parquet").write_bytes(b"PAR1 half a file")
    with pytest.raises(rl.errors.UsageError, match=r"part-x\.parquet: not a file of results"):
        read(tmp_path)


def test_a_page_and_a_chart_show_the_ranking_and_escape_names(models: Path, tmp_path: Path) -> None:
    (models / "<b>bold.json").write_text(json.dumps(CONFIG))
    fleet = run(models, ["l4"], tmp_path / "out", Question(seq=64), workers=0)
    text = rl.report(fleet).html()
    assert "What could not be worked out" in text
    assert "<b>bold" not in text
    assert "&lt;b&gt;" in text
    assert rl.charts.plot(fleet).records()


# --- processes --------------------------------------------------------------------------------------------------------


def test_processes_give_the_same_rows(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    done = list[float]()
    here = run(models, ["l4"], tmp_path / "here", FAST, workers=0)
    there = run(models, ["l4"], tmp_path / "there", FAST, workers=1, progress=done.append)
    assert done[-1] == 1.0
    strip = [[{k: v for k, v in row.items() if k != "written"} for row in fleet.rows] for fleet in (here, there)]
    assert strip[0] == strip[1]


@pytest.mark.skipif(not LONG or sys.platform == "win32", reason="starts and kills processes")
def test_a_killed_worker_costs_its_task_and_a_killer_is_a_row(models: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    cloudpickle = pytest.importorskip("cloudpickle")
    import dask

    for number in range(20):
        (models / f"m{number}.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 2 + number}))
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as local,
        distributed.Client(local) as client,
    ):
        killed: list[Any] = []

        def kill(share: float) -> None:
            if not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        fleet = run(models, ["l4"], tmp_path / "out", FAST, scheduler=local.scheduler_address, progress=kill)
        assert killed
        assert {row["model"] for row in fleet.failed} == {"bad"}
        assert len({row["model"] for row in fleet.rows}) == 23
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        client.register_plugin(_poison(distributed))
        again = run([models / "m3.json", models / "m4.json"], ["t4"], tmp_path / "out", FAST,
                    scheduler=local.scheduler_address)  # fmt: skip
    ends = {row["model"]: "killed its worker" in (row["error"] or "") for row in again.rows}
    assert ends == {"m3": True, "m4": False}


def _poison(distributed: Any) -> Any:
    """Return a plug-in by which each worker, and those that take its place, dies of one model."""

    class Poison(distributed.WorkerPlugin):  # type: ignore[misc]
        def setup(self, worker: Any) -> None:
            from roofline.fleet import task

            real = task.rows_of
            task.rows_of = lambda job, *rest: os._exit(1) if job.entry.name == "m3" else real(job, *rest)

    return Poison()
