"""Fit the warm figures of chips to other people's silicon and write them into the chips' files.

    python benchmarks/fit_chips.py KERNELS.csv CHIP [CHIP ...]

KERNELS.csv has the columns ``chip, op, dtype, shape, p50_us`` (the measured tables of aiconfigurator-core 0.12.0,
NVIDIA, Apache-2.0). Matrix products and attention are fitted from where the chip starts, crosswise to judge them, then
on all rows; figures that the rows do not move are not written. A chip with figures of its own for cold launches gets
only those that a serving stack changes.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np

import roofline as rl
from roofline.analysis.fitting import Effort, Sample, fit, take_apart
from roofline.cost import values
from roofline.hardware.library import data_dir

#: What a serving stack changes on a chip whose kernels are known cold.
SERVING = frozenset(
    [
        "launch",
        "dram",
        "skinny",
        "knee",
        "kept",
        "split",
        "throttle",
        "share_fp8",
        "share_fp8_block",
        "resident",
        "fill",
        "knee_memory",
        "trail",
        "entry_fp8",
        "entry_row",
        "host_block",
        "host_block_odd",
        "host_block_few",
        "host_block_ragged",
        "start",
        "begin",
        "append",
        "token",
        "kv8",
        "odd",
        "ramp",
        "hold",
    ]
)
#: Where figures of matrix products start that are switched off in other regimes.
START = {"fill": 2e-7, "knee_memory": 1.3, "trail": 1.5}
#: Formats of the rows whose matrix products have a range of their own.
WIDE_WORDS = frozenset({"fp8_block", "nvfp4", "int8", "fp32", "tf32"})
WORDS = {"matmul": "gemm", "attention": "attention_sdpa"}


def samples(path: Path, chip: str, op: str) -> list[Sample]:
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["chip"] == chip and row["op"] == op]
    return [Sample(r["op"], r["dtype"], json.loads(r["shape"]), float(r["p50_us"]) * 1e-6) for r in rows]


def warm_start(chip: rl.Chip) -> rl.Chip:
    """The chip with its cold figures as the ones that move, and no warm ones to hide them.

    Matrix products of a chip without figures of its own start from priors, medians of many chips: a fit that starts
    from its sibling's cold kernels may end far from the best (of an A100's by a fifth).
    """
    kept = {name: table for name, table in chip.efficiency.parameters.items() if not name.endswith("_warm")}
    merged = {name: dict(values(chip, name)) for name in WORDS}
    if chip.efficiency.like:
        alone = chip.efficiency.model_copy(update={"like": "", "parameters": {}})
        merged["matmul"] = dict(values(chip.model_copy(update={"efficiency": alone}), "matmul"))
    merged["matmul"] |= START
    efficiency = chip.efficiency.model_copy(update={"parameters": {**kept, **merged}})
    return chip.model_copy(update={"efficiency": efficiency})


def errors(found: list[Sample], chip: rl.Chip, group: str, effort: Effort) -> tuple[list[Sample], np.ndarray]:
    """The samples, and the relative error of each, predicted by a fit on the other half."""
    halves = [[s for s in found if s.side == side] for side in (0, 1)]
    result = []
    for taught, judged in ((halves[1], halves[0]), halves):
        figures = fit(take_apart(taught, chip, "warm"), chip, [group], effort)
        pieces = take_apart(judged, chip, "warm")
        result.append(pieces.predict(figures) / pieces.measured - 1)
    return [*halves[0], *halves[1]], np.concatenate(result)


def spreads(found: list[Sample], off: np.ndarray, group: str) -> dict[str, float]:
    """The factor within which nine of ten held-out rows lie, for each class of formats."""
    classes = np.array(["matmul_wide" if group == "matmul" and s.dtype in WIDE_WORDS else group for s in found])
    size = np.abs(np.log1p(off))
    return {name: round(float(np.exp(np.quantile(size[classes == name], 0.9))), 2) for name in sorted(set(classes))}


def write(path: Path, table: str, figures: dict[str, float]) -> None:
    text = re.sub(rf"\[efficiency\.parameters\.{table}\]\n(?:\w+ = .*\n)*\n*", "", path.read_text())
    body = "\n".join(f"{key} = {value:.4g}" for key, value in figures.items())
    at = text.index("\n[sources]") + 1 if "\n[sources]" in text else len(text)
    path.write_text(f"{text[:at]}[efficiency.parameters.{table}]\n{body}\n\n{text[at:]}")


def main() -> None:
    for name in sys.argv[2:]:
        own = rl.chip(name)
        effort = Effort() if own.efficiency.like else Effort(only=SERVING)
        chip, ranges = warm_start(own), dict(own.efficiency.parameters.get("spread_warm", {}))
        for group, op in WORDS.items():
            found = samples(Path(sys.argv[1]), name, op)
            found, off = errors(found, chip, group, effort)
            size = np.abs(off)
            report = f"mean {size.mean():.1%} median {np.median(size):.1%} p90 {np.quantile(size, 0.9):.1%}"
            print(f"{name:20} {group:10} held out: {report}", flush=True)
            fitted = fit(take_apart(found, chip, "warm"), chip, [group], effort)[group]
            start, cold = chip.efficiency.parameters[group], values(own, group)
            known = {k: v for k, v in fitted.items() if abs(v / start[k] - 1) > 1e-9}  # what the rows depend on
            moved = {k: v for k, v in known.items() if abs(v - cold[k]) > 1e-3 * v}
            path = data_dir("chips") / f"{name}.toml"
            write(path, f"{group}_warm", moved)
            ranges |= spreads(found, off, group)
            write(path, "spread_warm", ranges)


if __name__ == "__main__":
    main()
