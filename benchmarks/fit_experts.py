"""Fit the figures of blocks of experts on chips that run the same kernels, first together, then each near the others.

    python benchmarks/fit_experts.py [--write] [--folds 2]

Some 25 rows a format and chip are too few for a fit of their own: a half predicts the other with 19 %, together with
the chips of the same generation with 14 %. What all chips share (``COMMON``) is the prior. The rows of
``measurements/*/serving_stack.csv`` are split by a hash of their sizes, or by the sizes of their experts
(``--by shape``), and each part is predicted by what the others teach.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from fit import load
from fit_chips import write

import roofline as rl
from roofline.analysis.fitting import Effort, Pieces, Sample, fit, take_apart
from roofline.cost import GROUPS
from roofline.hardware.library import data_dir

GROUP = "moe"
#: Chips whose serving stacks run the same kernels.
FAMILIES = (
    ("a100-80gb-sxm",), ("h100-sxm", "h200-sxm"), ("b200-sxm", "b300-sxm", "gb200", "gb300"), ("l40s",),
    ("rtx-pro-6000-server",),
)  # fmt: skip
#: Parameters that all chips share, and those that a generation does.
COMMON, FAMILY = frozenset({"step", "near", "cache", "resident", "lump"}), frozenset({"coarse"})
#: Pull of a generation's parameters to the prior and of a chip's to its generation's, against a row's relative error.
LOOSE, TIGHT = 0.1, 1.0
#: A figure this close to the prior is not written, as a share.
CLOSE = 0.05

Figures = Mapping[str, float]


def start(name: str, figures: Figures) -> rl.Chip:
    """The chip with these figures to start from, and what its rows alone say: how few skewed picks fell."""
    chip = rl.chip(name)
    lump = {key: value for key, value in chip.efficiency.parameters.get(GROUP, {}).items() if key == "lump"}
    tables = {**chip.efficiency.parameters, GROUP: {**figures, **lump}}
    return chip.model_copy(update={"efficiency": chip.efficiency.model_copy(update={"parameters": tables})})


def together(pieces: Sequence[Pieces]) -> Pieces:
    """Samples of several chips as if of one."""
    parts, at = [], 0
    for each in pieces:
        parts += [dataclasses.replace(part, index=part.index + at) for part in each.parts]
        at += len(each.index)
    return Pieces(tuple(range(at)), np.concatenate([each.measured for each in pieces]), tuple(parts), {})


def taught(rows: Mapping[str, Sequence[Sample]]) -> dict[str, dict[str, float]]:
    """Figures of the chips of a generation."""
    prior = {key: each.prior for key, each in GROUPS[GROUP].items()}
    free = frozenset(GROUPS[GROUP]) - COMMON
    pieces = {name: take_apart(samples, start(name, prior), "warm") for name, samples in rows.items()}
    first = start(next(iter(rows)), prior)
    shared = fit(together(list(pieces.values())), first, [GROUP], Effort(only=free, pull=LOOSE))[GROUP]
    if len(rows) == 1:
        return {next(iter(rows)): shared}
    own = Effort(only=free - FAMILY, pull=TIGHT)
    return {name: fit(pieces[name], start(name, shared), [GROUP], own)[GROUP] for name in rows}


def errors(name: str, samples: Iterable[Sample], figures: Figures) -> np.ndarray:
    pieces = take_apart(samples, start(name, figures), "warm")
    return pieces.predict({GROUP: figures}) / pieces.measured - 1


def fold(sample: Sample, by: str, folds: int) -> int:
    sizes = {key: sample.shape[key] for key in ("hidden", "intermediate", "experts")}
    return zlib.crc32(json.dumps(sizes).encode()) % folds if by == "shape" else (
        zlib.crc32(f"{sample.dtype}{json.dumps(dict(sample.shape))}".encode()) % folds
    )  # fmt: skip


def moved(name: str, figures: Figures) -> dict[str, float]:
    """What the rows of a chip moved: all that a generation has where a sibling's figures would stand in for it."""
    chip, alone = rl.chip(name), {}
    for key, value in figures.items():
        known = GROUPS[GROUP][key]
        stays = getattr(chip.efficiency, known.follows) if known.follows else known.prior
        if abs(value / stays - 1) > CLOSE or (chip.efficiency.like and key not in COMMON):
            alone[key] = value
    return alone


def main() -> None:
    """Read, fit, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--folds", type=int, default=2)
    parser.add_argument("--by", choices=("row", "shape"), default="row")
    args = parser.parse_args()
    means = []
    for family in FAMILIES:
        rows = {name: [s for s in load(Path(f"measurements/{name}/serving_stack.csv"), name) if s.op == "moe"]
                for name in family}  # fmt: skip
        all_of = taught(rows)
        unseen: dict[str, list[np.ndarray]] = {name: [] for name in family}
        for at in range(args.folds):
            figures = taught({k: [s for s in v if fold(s, args.by, args.folds) != at] for k, v in rows.items()})
            for name, samples in rows.items():
                judged = [s for s in samples if fold(s, args.by, args.folds) == at]
                unseen[name].append(errors(name, judged, figures[name]))
        for name in family:
            seen, off = (
                np.abs(each) for each in (errors(name, rows[name], all_of[name]), np.concatenate(unseen[name]))
            )
            means.append((seen.mean(), off.mean()))
            print(f"{name:20} held out {off.mean():.1%} median {np.median(off):.1%}, all rows {seen.mean():.1%} "
                  f"median {np.median(seen):.1%}", flush=True)  # fmt: skip
            if args.write:
                write(data_dir("chips") / f"{name}.toml", GROUP, moved(name, all_of[name]))
    print("mean over chips: all rows {:.1%}, held out {:.1%}".format(*np.mean(means, axis=0)))


if __name__ == "__main__":
    main()
