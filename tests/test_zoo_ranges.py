"""The fit of the ranges of programs: what it recovers from programs whose errors are known."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def ranges() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("zoo_ranges")


def test_half_widths_come_back_from_errors_by_class(ranges: ModuleType) -> None:
    numbers = np.random.default_rng(0)
    sigma = {"matmul": 0.05, "conv_other": 0.4, "whole_program": 0.03}
    made = []
    for at in range(240):
        share = float(numbers.uniform(0, 1))
        shares = {"matmul": 1 - share, "conv_other": share}
        error = sum(part * numbers.normal(0, sigma[name]) for name, part in shares.items())
        residual = error + numbers.normal(0, sigma["whole_program"])
        made.append(ranges.Program("kind", f"program {at // 2}", "", residual, shares, -0.1, 0.1))
    table = ranges.Table(made)
    found = dict(zip(ranges.NAMES, np.exp(ranges.fit(table, np.ones(len(made), dtype=bool), 0.9)), strict=True))
    for name in ("matmul", "conv_other"):
        assert 0.6 < found[name] / (1.645 * sigma[name]) < 1.6, found
    widths = ranges.left_out(table, 0.9)
    assert 0.8 < np.mean(table.size <= widths) < 0.98
    wide, narrow = (widths[[one.shares["conv_other"] > 0.8 for one in made]].mean(),
                    widths[[one.shares["conv_other"] < 0.2 for one in made]].mean())  # fmt: skip
    assert wide > 2 * narrow, "wide where what is not well known dominates"
