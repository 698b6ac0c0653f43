"""Programs as people write them: predicted from their capture, against what was measured on an H100."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parent.parent
#: Small programs that no library ships, of different kinds.
NAMES = frozenset({"tcn", "vocoder", "lstm-2x512", "dlrm-small", "graphconv", "resnet3d", "vae-decoder", "block-lm"})


@pytest.fixture(scope="module")
def zoo() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("zoo")


@pytest.fixture(scope="module")
def compared(zoo: ModuleType) -> list[dict[str, Any]]:
    own = zoo.modules(zoo.FOLDER)
    rows = [row for row in zoo.rows_of(zoo.FOLDER, "models.csv") if row["model"] in NAMES and row["mode"] == "eager"]
    return [zoo.compared(row, zoo.capture(row, own), "h100-sxm") for row in rows]


def test_programs_of_strangers_take_about_as_long_as_predicted(compared: list[dict[str, Any]]) -> None:
    assert {one["model"] for one in compared} == NAMES
    error = {one["model"]: abs(one["predicted_us"] / one["measured_us"] - 1) for one in compared}
    assert np.mean(list(error.values())) < 0.15, error
    assert np.median(list(error.values())) < 0.14, error


def test_most_of_them_are_inside_their_range(compared: list[dict[str, Any]]) -> None:
    inside = Counter(one["low_us"] <= one["measured_us"] <= one["high_us"] for one in compared)
    assert inside[False] <= 1, compared
    assert np.median([one["high_us"] / one["low_us"] for one in compared]) < 1.75


def test_what_is_recorded_is_what_is_compared(zoo: ModuleType, compared: list[dict[str, Any]]) -> None:
    found = {section.name: section for section in zoo.validation(compared, "h100-sxm").sections}
    assert set(found) == {"programs", "programs, wall time", "programs, activations"}
    error = [100 * abs(one["predicted_us"] / one["measured_us"] - 1) for one in compared]
    assert found["programs"].total.mean == pytest.approx(np.mean(error))
    assert found["programs, wall time"].total.rows == len(compared)
    assert found["programs, activations"].total.inside is None


def test_a_measured_kernel_counts_once(zoo: ModuleType) -> None:
    """It was launched by an operator or a compiled function, not by an event of the profiler's own."""
    folder = ROOT / "measurements" / "h200-sxm" / "zoo"
    rows = zoo.rows_of(folder, "ops.csv")
    assert rows
    assert "Activity Buffer Request" not in {row["op"] for row in rows}
    took: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        took[tuple(row[key] for key in zoo.KEYS)] += float(row["us"])
    for row in zoo.rows_of(folder, "models.csv"):
        known = took.get(tuple(row[key] for key in zoo.KEYS))
        if known and row["kernel_us"]:
            assert known == pytest.approx(float(row["kernel_us"]), rel=0.02)
