"""Whole programs of strangers: predicted from their capture, against what was measured.

    python benchmarks/zoo.py [FOLDER] [--chip CHIP] [--times FILE] [--only NAME...] [--ops] [--csv FILE]
                             [--check | --record]

FOLDER has ``models.csv``, ``ops.csv`` and ``modules.py`` (``measurements/h100-sxm/zoo`` by default; its columns are
described in measurements/README.md). Every program is built anew on the meta device, captured by ``rl.from_torch`` and
estimated; nothing is read from the measurements but what to compare with. ``--ops`` sets the time of each operator
beside the measured one. ``--check`` fails where a figure is worse by more than a point than in FOLDER's
``recorded.toml``, which ``--record`` writes.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

import roofline as rl
from roofline.analysis.validation import Point, Validation, record, sections, worse

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "measurements" / "h100-sxm" / "zoo"
#: The transformers whose programs were measured; later ones run some of them otherwise (T5: the bias of attention is
#: made contiguous, which lets PyTorch take a fused kernel).
LIBRARY = "5.17.0"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "amp-bf16": torch.float32}
OPTIMIZERS = {
    "train-sgd": lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9),
    "train-adamw": lambda weights: torch.optim.AdamW(weights, lr=1e-4, fused=True),
}

#: Kinds of programs.
KINDS = {
    "vision": "resnet50 convnextv2-tiny mobilenetv2 vit-base swinv2-tiny beit-base clip unet-bn-32 resnet3d",
    "speech and sound": "wav2vec2-base tcn vocoder",
    "language": "bert-large bart-base t5-small deberta-v2-base pythia-1b opt-1.3b llama-3.2-1b gemma-4layers "
                "phi3-4layers olmoe-4layers block-lm encoder-layer-nn",
    "diffusion": "vae-decoder dit-b2",
    "recommendation, graphs": "dlrm-small graphconv",
    "recurrent": "gru-512 lstm-2x512",
}  # fmt: skip
#: What names a row.
KEYS = ("model", "inputs", "dtype", "layout", "mode")

Row = dict[str, str]


def kind_of(row: Row) -> str:
    """The kind of program that a row is of."""
    if row["mode"].startswith("train"):
        return "training steps"
    return next((kind for kind, names in KINDS.items() if row["model"] in names.split()), "other programs")


def rows_of(folder: Path, name: str) -> list[Row]:
    """The rows of one of the tables."""
    with (folder / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def modules(folder: Path) -> ModuleType:
    """The networks that no library ships."""
    spec = importlib.util.spec_from_file_location("zoo_modules", folder / "modules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["zoo_modules"] = module
    spec.loader.exec_module(module)
    return module


def build(row: Row, own: ModuleType, device: str = "") -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The program of a row with its arguments; without memory, but for optimizers, which refuse that."""
    device = device or ("cpu" if row["mode"].startswith("train") else "meta")
    dtype = DTYPES[row["dtype"]]
    layout = torch.channels_last if row["layout"] else torch.contiguous_format

    def img(batch: int, size: int = 224, channels: int = 3) -> torch.Tensor:
        return torch.randn(batch, channels, size, size, dtype=dtype, device=device).to(memory_format=layout)

    def ids(batch: int, length: int, vocab: int = 1000) -> torch.Tensor:
        return torch.randint(vocab, (batch, length), device=device)

    def rnd(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    # The expressions are our own tables', not a stranger's.
    library = importlib.import_module("transformers") if "T." in row["build"] else None
    words = {"T": library, "nn": nn, "M": own, "torch": torch, "img": img, "ids": ids, "rnd": rnd}
    with torch.device(device):
        module = eval(row["build"], words).to(dtype)
    if row["layout"]:
        module = module.to(memory_format=layout)
    module = module.train() if row["mode"].startswith("train") else module.eval()
    inputs = eval(row["inputs"], words)
    if isinstance(inputs, dict):
        return module, (), inputs
    return module, inputs if isinstance(inputs, tuple) else (inputs,), {}


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, Mapping | list | tuple):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from tensors(part)


def first(result: Any) -> torch.Tensor:
    """The first result in floating point."""
    return next(out for out in tensors(result) if out.is_floating_point())


def runnable(row: Row, module: nn.Module) -> Any:
    """What the measurement ran: the module, or a training step of it."""
    device = next(module.parameters()).device.type
    amp = torch.autocast("cuda" if device == "cuda" else "cpu", torch.bfloat16, enabled=row["dtype"] == "amp-bf16")
    if not row["mode"].startswith("train"):
        return module
    optimizer = OPTIMIZERS[row["mode"]](list(module.parameters()))

    def step(*args: Any, **kwargs: Any) -> torch.Tensor:
        with amp:
            loss = first(module(*args, **kwargs)).float().pow(2).mean()  # whose kernels are in ops.csv
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def capture(row: Row, own: ModuleType) -> rl.Graph:
    """The graph of a row's program."""
    try:
        return captured(row, own)
    except rl.errors.ModelDataError:
        return captured(row, own, "cpu")  # the way that it takes depends on values


def captured(row: Row, own: ModuleType, device: str = "") -> rl.Graph:
    """The graph of a row's program, built on a device."""
    module, args, kwargs = build(row, own, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rl.from_torch(runnable(row, module), *args, kwargs=kwargs, unknown="report", name=row["model"])


def compared(row: Row, graph: rl.Graph, chip: str) -> dict[str, Any]:
    """What was measured of a row, and what is predicted."""
    device, eager = (rl.estimate(graph, chip, mode=mode) for mode in ("graph", "eager"))
    wall, kernels = float(row["wall_us"]), float(row["kernel_us"] or "nan")
    return {
        **{key: row[key] for key in KEYS},
        "measured_us": min(kernels, wall) if row["kernel_us"] else wall,
        "predicted_us": eager.device_time * 1e6,
        "low_us": eager.device_time * device.low / device.device_time * 1e6,
        "high_us": eager.device_time * device.high / device.device_time * 1e6,
        "wall_us": wall,
        "wall_low_us": eager.low * 1e6,
        "wall_expected_us": eager.time * 1e6,
        "wall_high_us": eager.high * 1e6,
        "kernels": int(row["n_kernels"]),
        "launches": int(eager.launches),
        "memory": float(row["activation_bytes"] or "nan"),
        "memory_predicted": float(eager.memory.activations + getattr(eager.memory, "gradients", 0)),
        "resident": float(eager.memory.weights + eager.memory.inputs),
    }


def by_op(measured: Iterable[Row], graph: rl.Graph, chip: str) -> list[tuple[str, float, float]]:
    """Time by operator, measured and predicted [us], the largest difference first."""
    ours: Counter[str] = Counter()
    for kernel in rl.estimate(graph, chip, mode="graph").kernel_rows():
        ours[re.sub(r"_\d+$", "", kernel["kernel"].rpartition(".")[2])] += kernel["time_s"] * 1e6
    theirs: Counter[str] = Counter()
    for one in measured:
        theirs[one["op"].removeprefix("aten::")] += float(one["us"])
    both = [(name, theirs[name], ours[name]) for name in {*ours, *theirs}]
    return sorted(both, key=lambda each: -abs(each[1] - each[2]))


def summary(results: list[dict[str, Any]]) -> str:
    """The figures of all rows."""

    def column(name: str, rows: list[dict[str, Any]]) -> Any:
        return np.array([float(row[name]) for row in rows])

    def errors(rows: list[dict[str, Any]]) -> str:
        measured, predicted = column("measured_us", rows), column("predicted_us", rows)
        low, high = column("low_us", rows), column("high_us", rows)
        error = np.abs(predicted / measured - 1)
        inside = np.mean((low <= measured) & (measured <= high))
        return (
            f"mean {error.mean():.1%}  median {np.median(error):.1%}  p90 {np.quantile(error, 0.9):.1%}  "
            f"bias {np.mean(predicted / measured - 1):+.1%}  inside {inside:.0%} at {np.median(high / low):.2f}"
        )

    training = [row for row in results if row["mode"].startswith("train")]
    eager = [row for row in results if row["mode"] == "eager"]
    lines = [f"{len(rows):3d} {name}: {errors(rows)}" for name, rows in (("eager", eager), ("train", training)) if rows]
    if eager:
        wall, low, high = (column(name, eager) for name in ("wall_us", "wall_low_us", "wall_high_us"))
        inside = np.mean((low <= wall) & (wall <= high))
        lines.append(f"wall inside {inside:.0%} at {np.median(high / low):.2f}")
        memory, ours, held = (column(name, eager) for name in ("memory", "memory_predicted", "resident"))
        lines.append(f"activations {np.mean(np.abs(ours / memory - 1)):.1%}, "
                     f"footprint {np.mean(np.abs((ours + held) / (memory + held) - 1)):.1%}")  # fmt: skip
    return "\n".join(lines)


def line(one: dict[str, Any]) -> str:
    """One row of the listing."""
    measured, predicted = one["measured_us"], one["predicted_us"]
    inside = " " if one["low_us"] <= measured <= one["high_us"] else "*"
    where = f"{one['model']} {one['inputs'][:28]} {one['dtype']} {one['layout'][:8]} {one['mode']}"
    return (
        f"{where:68s} {measured:9.0f} {predicted:9.0f} {predicted / measured - 1:+6.0%}{inside} "
        f"{one['kernels']:5d} {one['launches']:5d}  mem {one['memory_predicted'] / one['memory'] - 1:+5.0%} "
        f"wall {one['wall_us']:7.0f} {one['wall_expected_us']:7.0f}"
    )


def validation(results: Iterable[Mapping[str, Any]], chip: str) -> Validation:
    """The figures that are recorded: kernel time, wall time and activations of eager programs, training steps' time."""
    points = []
    for one in results:
        what, train = " ".join(str(one[key]) for key in KEYS), one["mode"].startswith("train")
        time = (one["measured_us"], one["predicted_us"], one["low_us"], one["high_us"])
        points.append(Point(chip, "training steps" if train else "programs", one["model"], what, *time))
        if not train:
            wall = (one["wall_us"], one["wall_expected_us"], one["wall_low_us"], one["wall_high_us"])
            points.append(Point(chip, "programs, wall time", one["model"], what, *wall))
            memory = (one["memory"], one["memory_predicted"], None, None)
            points.append(Point(chip, "programs, activations", one["model"], what, *memory))
    return Validation(sections(points), {}, 0)


def main() -> None:
    """Compare every row that ran eagerly; the replays have the same kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--chip", default="h100-sxm")
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--times", type=Path, help="a table of the same programs on another chip, to compare with")
    parser.add_argument("--ops", action="store_true")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    own, measured = modules(options.folder), rows_of(options.folder, "ops.csv") if options.ops else []
    results = []
    times = options.times or options.folder / "models.csv"
    for row in rows_of(times.parent, times.name):
        if row["mode"] == "cudagraph" or (options.only and not any(name in row["model"] for name in options.only)):
            continue
        try:
            graph = capture(row, own)
        except (rl.errors.RooflineError, RuntimeError) as error:
            print(f"{row['model']} {row['inputs'][:28]} {row['mode']}: not captured: {str(error)[:200]}")
            continue
        results.append(compared(row, graph, options.chip))
        print(line(results[-1]), flush=True)
        same = [each for each in measured if all(each[key] == row[key] for key in KEYS)]
        for name, theirs, ours in by_op(same, graph, options.chip)[:20] if options.ops else ():
            print(f"      {name:40s} {theirs:9.1f} {ours:9.1f}")
    print(summary(results))
    if "transformers" in sys.modules and (installed := sys.modules["transformers"].__version__) != LIBRARY:
        print(f"transformers {installed} is installed and {LIBRARY} was measured: programs of it may differ")
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(results[0]))
            writer.writeheader()
            writer.writerows(results)
    recorded = options.folder / "recorded.toml"
    if options.record:
        record(validation(results, options.chip), recorded)
    if options.check and (lines := worse(validation(results, options.chip), recorded)):
        sys.exit("\n".join(("worse than recorded:", *lines)))


if __name__ == "__main__":
    main()
