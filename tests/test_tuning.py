"""Tuning a blocked matmul on the CPU at hand: variants that all compute the same, a model, a search, a memory.

``tests/tuned`` has the measured time of every variant of three problems (numpy 2.4 and numba 0.68, one thread of an AMD
EPYC of Zen 5 cores with 48 KiB of L1 and 1 MiB of L2, 2026-11-29): searches replay them under noise.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Run, fails

import roofline as rl
from roofline.ir.errors import UsageError
from roofline.measurement.tuning.log import log_of
from roofline.measurement.tuning.model import OPERANDS, CostModel, Rates, begin, counts, learned
from roofline.measurement.tuning.search import Known
from roofline.measurement.tuning.tune import COMPILED_RATE, MOVED, START, Tuning, number_of, search
from roofline.measurement.tuning.variants import Problem, Variant, available, runner, space, steps

TUNED = Path(__file__).parent / "tuned"
SURFACES = sorted(path.stem for path in TUNED.glob("*.csv"))
RATES = {"numpy": Rates(1 / 128e9, 2e-6, 1 / MOVED), "numba": Rates(1 / COMPILED_RATE, START, 1 / MOVED)}
SMALL = Problem(40, 50, 33)


def surface(name: str) -> tuple[CostModel, dict[Variant, float]]:
    with open(TUNED / f"{name}.csv", newline="") as stream:
        times = {
            Variant(row["kernel"], int(row["bm"]), int(row["bn"]), int(row["bk"]), row["order"],
                    row["packed"] == "1", int(row["unroll"])): float(row["us"]) * 1e-6
            for row in csv.DictReader(stream)
        }  # fmt: skip
    shape, kernel = name.split("-")
    problem = Problem(*map(int, shape.split("x")))
    return begin(problem, {kernel: RATES[kernel]}, (48 * 2**10, 2**20)), times


def regrets(name: str, method: str, noise: float, seeds: range) -> list[float]:
    """Return how much longer the winner of each search takes than the best of all."""
    prior, times = surface(name)
    known, most = Known(tuple(times), prior, {}), number_of(0.02, len(times))
    ratios = []
    for seed in seeds:
        noisy = partial(_noisy, times, noise, np.random.default_rng(seed))
        measured, _ = search(known, method, most, noisy, seed)
        assert len(measured) <= most
        ratios.append(times[min(measured, key=measured.__getitem__)] / min(times.values()))
    return ratios


def _noisy(times: Mapping[Variant, float], noise: float, draw: Any, variant: Variant, _: float) -> float:
    return float(np.median(times[variant] * np.exp(noise * draw.normal(size=5))))


@pytest.mark.parametrize("name", SURFACES)
def test_two_per_cent_of_the_measurements_come_within_five_per_cent(name: str) -> None:
    found = regrets(name, "evolution", 0.07, range(3))
    assert np.mean(found) < 1.05
    assert np.mean(found) < np.mean(regrets(name, "random", 0.07, range(3)))


def test_what_was_measured_teaches_the_model() -> None:
    """Fitted to a tenth of the variants it orders the others better than before, and similar ones help it further."""
    ratios = []
    for prior, times in map(surface, SURFACES):
        every, seconds = list(times), np.array(list(times.values()))
        drawn = np.random.default_rng(0).permutation(len(every))[: len(every) // 10]
        taught = {every[at]: times[every[at]] for at in drawn}
        model = learned(prior, taught)
        before, after = (np.corrcoef(_rank(each.seconds(every)), _rank(seconds))[0, 1] for each in (prior, model))
        assert after > max(before, 0.7)
        near, unsure = model.expected(every, taught)
        off = [np.mean(np.abs(logs - np.log(seconds))) for logs in (near, np.log(model.seconds(every)))]
        ratios.append(off[0] / off[1])
        assert unsure[drawn[0]] < 0.2 * np.max(unsure)
    assert np.mean(ratios) < 0.9


def _rank(values: Any) -> Any:
    return np.argsort(np.argsort(values))


@pytest.mark.parametrize("kernel", available())
def test_all_variants_compute_the_product(kernel: str) -> None:
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(40, 33)).astype(np.float32), draw.normal(size=(33, 50)).astype(np.float32)
    some = space(SMALL, [kernel])
    for variant in some[:: max(len(some) // 60, 1)]:
        np.testing.assert_allclose(runner(SMALL, variant, a, b)(), a @ b, rtol=1e-4, atol=1e-4, err_msg=str(variant))


def test_counts_are_those_of_the_steps() -> None:
    """Blocks that change from step to step, counted by walking."""
    some = space(Problem(64, 40, 70), ["numpy"])[::7]
    for variant, row in zip(some, counts(Problem(64, 40, 70), some), strict=True):
        walk = list(steps(Problem(64, 40, 70), variant))
        assert row[1] == len(walk)
        for column, axes in zip(row[5:8], OPERANDS.values(), strict=True):
            spans = {"m": slice(0, 2), "n": slice(2, 4), "k": slice(4, 6)}
            blocks = [tuple(step[spans[axis]] for axis in axes) for step in walk]
            changes = 1 + sum(first != second for first, second in pairwise(blocks))
            edges = {"m": min(variant.bm, 64), "n": min(variant.bn, 40), "k": min(variant.bk, 70)}
            assert column == changes * edges[axes[0]] * edges[axes[1]] * 4


@pytest.fixture
def tuned(tmp_path: Path) -> Tuning:
    return rl.measurement.tune(40, 50, 33, kernels=["numpy"], budget=10, repeats=1, cache=tmp_path)


def test_what_was_measured_is_not_measured_again(tuned: Tuning, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("roofline.measurement.tuning.tune.Bench.seconds", _never)
    again = rl.measurement.tune(40, 50, 33, kernels=["numpy"], budget=10, repeats=1, cache=tmp_path)
    assert (again.measured, again.remembered) == (tuned.measured, len(tuned.measured))
    assert again.library == tuned.library
    with pytest.raises(AssertionError):
        rl.measurement.tune(40, 50, 33, kernels=["numpy"], budget=10, repeats=1, cache=tmp_path, fresh=True)


def _never(*_: Any) -> float:
    raise AssertionError("measured again")


def test_an_interrupted_search_keeps_what_it_has_and_goes_on(tmp_path: Path, monkeypatch: Any, run: Run) -> None:
    from roofline.measurement.tuning.tune import Bench

    calls = iter(range(100))
    real = Bench.seconds

    def stopped(self: Bench, variant: Variant, best: float) -> float:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return real(self, variant, best)

    monkeypatch.setattr(Bench, "seconds", stopped)
    words = "tune", "40x50x33", "--kernel", "numpy", "--budget", 10, "--repeats", 1, "--cache", tmp_path, "--json"
    first = run(*words)
    assert (first.code, first.data["interrupted"], first.data["measurements"]) == (130, True, 4)
    assert "interrupted after 4 measurements; the same command goes on from there" in first.err
    second = rl.measurement.tune(40, 50, 33, kernels=["numpy"], budget=10, repeats=1, cache=tmp_path)
    assert (second.interrupted, second.remembered) == (False, 4)
    same = ("kernel", "bm", "bn", "bk", "unroll")
    assert [[row[key] for key in same] for row in first.data["rows"]] == [
        [row[key] for key in same] for row in second.records()[:4]
    ]


def test_another_machine_is_ranked_anew_and_measured(tmp_path: Path) -> None:
    problem, slow = Problem(40, 50, 33), Variant("numpy", 16, 16, 16, "knm")
    theirs = log_of(problem, "another-chip", {"numpy": "1.0"}, tmp_path)
    theirs.add(slow, 1e-9)
    found = rl.measurement.tune(40, 50, 33, kernels=["numpy"], budget=10, repeats=1, cache=tmp_path)
    ((chip, variant, seconds, rank),) = found.seeds
    assert (chip, variant, seconds) == ("another-chip", slow, 1e-9)
    assert rank > found.size // 2, "the model of this machine knows that many small steps are slow"
    assert found.measured.get(slow, 1.0) > 1e-8, "a time of another machine is no time here"


@pytest.mark.parametrize(
    "text",
    [b"", b"\x00\xff", b"[" * 10_000, b'{"key": 3}\n', b'{"key": {"problem": []}}\n{"kernel": 3}\n', b"x" * 10_000],
)
def test_a_broken_file_is_no_memory(text: bytes, tmp_path: Path) -> None:
    log = log_of(SMALL, "here", {}, tmp_path)
    log.path.write_bytes(text)
    other = log_of(SMALL, "there", {}, tmp_path)
    other.path.write_bytes(text)
    assert log.read() == {}
    assert all(not times for times in log.elsewhere().values())
    log.add(Variant("numpy", 16, 16, 16, "mnk"), 1.0)
    with open(log.path, "a") as stream:
        stream.write('{"kernel": "numpy", "bm"')  # the last line of a run that was killed
    assert list(log.read().values()) == [1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m": 0}, "m="),
        ({"m": 10**9, "n": 10**9}, "allowed: at most"),
        ({"dtype": "bf16"}, "dtype 'bf16'; allowed: fp32, fp64"),
        ({"kernels": ["nunpy"]}, "did you mean numpy?"),
        ({"kernels": []}, "no kernels"),
        ({"method": "evolve"}, "allowed: evolution"),
        ({"budget": 0}, "budget 0"),
        ({"budget": 1.5}, "budget 1.5"),
        ({"budget": float("nan")}, "budget nan"),
    ],
)
def test_nonsense_is_refused(arguments: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        rl.measurement.tune(**{"m": 8, "n": 8, "k": 8, **arguments})
    assert message in str(error.value)


def test_the_command_prints_the_best_and_draws(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "x.svg"
    options = ["--kernel", "numpy", "--budget", "9", "--repeats", "1", "--cache", str(tmp_path)]
    result = run("tune", "40x50x33", *options, "--plot", str(picture))
    assert result.code == 0, result.err
    assert "of 324 variants, by evolution" in result.out
    assert "library" in result.out
    assert "best so far" in picture.read_text()
    record = run("tune", "40x50x33", *options, "--json").data
    assert record["measurements"] == len(record["rows"]) == record["remembered"]
    assert record["rows"][-1]["best_so_far_s"] == record["time_s"]


def test_the_command_names_what_a_shape_is(run: Run) -> None:
    fails(run("tune", "40x50"), "such as 512x512x512")
