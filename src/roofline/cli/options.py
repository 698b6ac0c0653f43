"""Options that several commands share, and the reading of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.analysis.training.step import usual_precision
from roofline.analysis.whatif import what_if
from roofline.cli.output import note
from roofline.counting.grid import LARGEST
from roofline.frontends.source import load_program
from roofline.hardware.chip import Chip, read_toml
from roofline.hardware.cluster import Cluster
from roofline.hardware.cluster import cluster as find_cluster
from roofline.hardware.library import chip as find_chip
from roofline.hardware.library import is_path
from roofline.ir.errors import RooflineError, UnknownChip, UsageError
from roofline.ir.graph import Graph
from roofline.passes.training.mixed_precision import PRECISIONS, training_graph

#: Points that one call evaluates at most.
MAX_POINTS = 10_000

Model = Annotated[str, typer.Argument(
    metavar="MODEL",
    help="A shipped name, a model .toml, a workload .json, a config.json or its folder, an .onnx file, or your own "
         "script.py, which is run.")]  # fmt: skip
OneChip = Annotated[str, typer.Argument(metavar="CHIP", help="A shipped name or a chip .toml.")]
Chips = Annotated[str, typer.Argument(metavar="CHIP", help="A shipped name or a chip .toml; several with commas.")]
Batches = Annotated[str | None, typer.Option(
    "--batch", "-B", metavar="N", help="Batch: 8, or several: 1,8,32 or 1:128 or 1:128:8. [default: 1]",
    show_default=False)]  # fmt: skip
Batch = Annotated[
    str | None, typer.Option("--batch", "-B", metavar="N", help="Batch. [default: 1]", show_default=False)
]
Seq = Annotated[str | None, typer.Option(
    "--seq", "-S", metavar="N", help="Prompt length in prefill, context in decode, sequence in forward.",
    show_default=False)]  # fmt: skip
Context = Annotated[str | None, typer.Option(
    "--context", "-C", metavar="N", help="Context of the decoder, where -S is the length of the encoder.",
    show_default=False)]  # fmt: skip
Phase = Annotated[str | None, typer.Option(
    metavar="PHASE", help="prefill, decode, forward or train. [default: the model's]", show_default=False)]  # fmt: skip
RunMode = Annotated[str, typer.Option("--mode", metavar="MODE", help="eager, graph or compiled.")]
DType = Annotated[str | None, typer.Option(
    "--dtype", metavar="FORMAT", help="Number format of everything, such as bf16.", show_default=False)]  # fmt: skip
Weights = Annotated[str | None, typer.Option(
    "--weights", metavar="FORMAT", help="Number format of the weights, such as int8, or int4,*.down*=int8.",
    show_default=False)]  # fmt: skip
Cache = Annotated[str | None, typer.Option(
    "--cache", metavar="FORMAT", help="Number format of the KV cache, such as int8.", show_default=False)]  # fmt: skip
Activations = Annotated[str | None, typer.Option(
    "--activations", metavar="FORMAT", help="Number format of what products take in, such as fp8.",
    show_default=False)]  # fmt: skip
Fuse = Annotated[str | None, typer.Option(
    "--fuse", metavar="POLICY", help="Fuse kernels: eager, pointwise, chains, inductor, flash or ideal.",
    show_default=False)]  # fmt: skip
Prune = Annotated[str | None, typer.Option(
    "--prune", metavar="WHAT", help="Remove shares: heads=0.25,channels=0.5,layers=0.5, or store weights 2:4.",
    show_default=False)]  # fmt: skip
Tensor = Annotated[int, typer.Option("--tp", metavar="N", help="Devices that share every layer.")]
Positions = Annotated[bool, typer.Option("--sp", help="They share the positions of norms and residuals too.")]
Pipeline = Annotated[int, typer.Option("--pp", metavar="N", help="Stages of a pipeline.")]
Interleave = Annotated[int, typer.Option("--interleave", metavar="N", help="Chunks of layers on each of its devices.")]
Copies = Annotated[int, typer.Option("--dp", metavar="N", help="Copies of the model, each with its part of the batch.")]
Experts = Annotated[int, typer.Option("--ep", metavar="N", help="Groups of devices that share the experts.")]
Zero = Annotated[
    int,
    typer.Option(
        "--zero", metavar="STAGE", help="Training: what copies divide: 1 states, 2 gradients too, 3 weights too."
    ),
]
Recompute = Annotated[str | None, typer.Option(
    "--recompute", metavar="WHAT", help="Training: activations computed again: none, selective or full.",
    show_default=False)]  # fmt: skip
MicroBatch = Annotated[int | None, typer.Option(
    "--micro-batch", metavar="N", help="Training: what a device runs at once. [default: its share; 1 in a pipeline]",
    show_default=False)]  # fmt: skip
Optimizer = Annotated[str, typer.Option(
    "--optimizer", metavar="NAME", help="sgd, momentum, adamw, adafactor or adam8bit.")]  # fmt: skip
Precision = Annotated[str | None, typer.Option(
    "--precision", metavar="NAME", help="fp32, bf16, fp16, amp-bf16, amp-fp16, mixed-bf16 or mixed-fp16.",
    show_default=False)]  # fmt: skip
TF32 = Annotated[bool, typer.Option("--tf32", help="Let fp32 matmuls use tf32.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Memory = Annotated[str | None, typer.Option(
    "--memory", metavar="SIZE", help="Limit, such as 72GiB. [default: the chip's]", show_default=False)]  # fmt: skip
Latency = Annotated[str | None, typer.Option(
    "--latency", metavar="TIME", help="Limit on one run, such as 50ms.", show_default=False)]  # fmt: skip

#: What each symbol is called and which option gives it.
_SYMBOLS = {"B": ("a batch", "-B"), "S": ("a sequence length", "-S"), "C": ("a context length", "-C")}

#: Options that say what numbers are stored in.
_FORMATS = frozenset({"weights", "cache", "activations", "tf32"})

_RANGE = re.compile(r"\s*([0-9]{1,40})(?::([0-9]{1,40})(?::([0-9]{1,40}))?)?\s*", re.ASCII)


def whole_numbers(text: str, option: str) -> int | list[int]:
    """Read ``8``, ``1,8,32``, ``1:128`` or ``1:128:8``; both ends of a range are in it.

    Raises:
        UsageError: Anything else, a number out of range, or too many.

    Example:
        >>> whole_numbers("1,4:8:2", "-B")
        [1, 4, 6, 8]
    """
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(
                f"{option} {text[:60]!r}: wanted whole numbers from 1, such as 8 or 1,8,32 or 1:128 or 1:128:8"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not 1 <= first <= last <= LARGEST or step < 1:
            raise UsageError(f"{option} {part[:60]!r}: allowed: from 1 to 10**12, and ranges upwards")
        if len(found) + (last - first) // step + 1 > MAX_POINTS:
            raise UsageError(f"{option} {text[:60]!r}: allowed: at most {MAX_POINTS} numbers; give a step")
        found += range(first, last + 1, step)
    return found[0] if len(found) == 1 else found


def program(
    model: str,
    phase: str | None,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    *,
    step: bool = True,
    on: Cluster | None = None,
    **changes: Any,
) -> Graph:
    """Build the program, change it (:func:`roofline.what_if`), and say what a reader should know of it.

    Of phase ``train``, a whole step on one device, formats as those of ``roofline train``; the forward alone without
    ``step``.
    """
    if phase == "train" and step:
        prune = changes.pop("prune", None)
        not_inference(weights=weights, cache=cache, **changes)
        graph = _step(what_if(trainable(model), prune=prune), dtype)
    else:
        graph = what_if(load_program(model, phase, dtype), weights=weights, cache=cache, cluster=on, **changes)
    for text in graph.info.notes:
        note(f"{graph.name}: {text}")
    return graph


def trainable(model: str) -> Graph:
    """The forward program that is trained: of phase ``train``, with a loss, where there is one."""
    if re.search(r"\.(py|onnx|json)(:\w+)?$", model, re.IGNORECASE) and not model.endswith("config.json"):
        return load_program(model)  # these have no phases
    try:
        return load_program(model, "train")
    except UsageError as error:
        try:
            graph = load_program(model, "forward")
        except RooflineError:
            raise error from None
    note(f"{graph.name} has no phase train: the step is that of its forward program, without a loss")
    return graph


def _step(graph: Graph, precision: str | None) -> Graph:
    """Forward, backward and update."""
    wanted = usual_precision(graph) if precision is None else precision
    master = wanted in PRECISIONS and PRECISIONS[wanted].master
    return training_graph(graph, precision=wanted, gradients="fp32" if master else None)


def chips(text: str) -> Chip | list[Chip]:
    """One chip, or several that commas part; of a cluster, one of its devices."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    found = [device(name) for name in names or [text]]
    return found if len(found) > 1 else found[0]


def device(name: str) -> Chip:
    """A chip, or one device of a cluster."""
    found = of_cluster(name)
    return find_chip(name) if found is None else found.device


def of_cluster(name: str) -> Cluster | None:
    """The cluster of that name, ``None`` where it is a chip's."""
    try:
        find_chip(name)
    except RooflineError as error:
        try:
            return find_cluster(name)
        except UnknownChip:
            raise error from None
        except RooflineError as other:
            raise (other if _describes_cluster(name) else error) from None
    return None


def _describes_cluster(name: str) -> bool:
    """Whether a file that is neither a chip nor a cluster was meant as a cluster: it names a chip, or nodes."""
    if not is_path(name):
        return True
    try:
        found = read_toml(Path(name).expanduser(), UsageError)
    except UsageError:
        return False
    return not found.keys().isdisjoint({"chip", "nodes", "devices_per_node"})


def shared(given: dict[str, Any], copies: int, each: int = 1, on: Cluster | None = None) -> dict[str, Any]:
    """Sizes of one of several copies of a model, each with its part of the batch.

    Args:
        given: Sizes of the whole.
        copies: How many.
        each: Devices of one copy.
        on: The cluster that must have as many devices as all need.

    Raises:
        UsageError: More copies than there is work for or than the cluster has devices for.
    """
    if copies < 1:
        raise UsageError(f"--dp {copies}: a whole number from 1 is wanted")
    if copies == 1:
        return given
    if "B" not in given:
        raise UsageError(f"--dp {copies}: this program has no batch that copies could share; nearest: --dp 1")
    batches = given["B"] if isinstance(given["B"], list) else [given["B"]]
    if min(batches) < copies:
        raise UsageError(
            f"--dp {copies}: a batch of {min(batches)} cannot be shared by so many copies; "
            f"nearest: --dp {min(batches)}, or -B {copies}"
        )
    if on is not None and not on.implied:
        on.span(each * copies)
    parts = [-(-batch // copies) for batch in batches]
    note(f"each of {copies} copies runs its part of the batch; throughput is that of one copy")
    return {**given, "B": parts if isinstance(given["B"], list) else parts[0]}


def not_training(**options: Any) -> None:
    """Refuse options of a training step for anything else."""
    for name, value in options.items():
        if value:
            raise UsageError(f"--{name} belongs to training: give --phase train, or use roofline train")


def sizes(
    graph: Graph, batch: str | None, seq: str | None, context: str | None = None, number: int = 1
) -> dict[str, Any]:
    """The sizes that a program uses, out of those given.

    Args:
        graph: The program.
        batch: Text of ``-B``.
        seq: Text of ``-S``.
        context: Text of ``-C``.
        number: How many programs or chips are evaluated at each point.

    Raises:
        UsageError: A size that the program needs was not given, or there are too many points.
    """
    texts = {"B": batch, "S": seq, "C": context}
    given = {name: whole_numbers(text, _SYMBOLS[name][1]) for name, text in texts.items() if text is not None}
    points = number * prod(len(value) for value in given.values() if isinstance(value, list))
    if points > MAX_POINTS:
        raise UsageError(f"{points} points; allowed: at most {MAX_POINTS} a call")
    return _matched(graph, given)


def some_sizes(graph: Graph, batch: str | None, seq: str | None, context: str | None) -> dict[str, int]:
    """The sizes that were given, one number each; the others stay symbols.

    Raises:
        UsageError: Several numbers for one size.
    """
    texts = {"B": batch, "S": seq, "C": context}
    given = {name: whole_numbers(text, _SYMBOLS[name][1]) for name, text in texts.items() if text is not None}
    for name, value in given.items():
        if isinstance(value, list):
            raise UsageError(f"{_SYMBOLS[name][1]} {texts[name]}: a listing shows one point; give one number")
    return {name: value for name, value in _named(graph, given).items() if name in graph.symbols}


def _named(graph: Graph, given: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes under the graph's own names, with a note on those without use; in a decode step ``-S`` is the context."""
    wanted, found = graph.symbols, dict(given)
    if "C" in wanted and "S" not in wanted and "C" not in found and "S" in found:
        found["C"] = found.pop("S")
    for name in sorted(found.keys() - wanted):
        word, option = _SYMBOLS[name]
        note(f"{graph.name} has no use for {word}; {option} is ignored")
    return found


def _matched(graph: Graph, given: Mapping[str, Any]) -> dict[str, Any]:
    """Give each symbol of a graph its size."""
    wanted, found = graph.symbols, _named(graph, given)
    if "B" in wanted:
        found.setdefault("B", 1)
    for name in sorted(wanted - found.keys()):
        if name not in _SYMBOLS:
            raise UsageError(
                f"{graph.name} needs {name}, for which there is no option; "
                f"in Python: rl.estimate(rl.load_program(...), chip, {name}=128)"
            )
        word, option = _SYMBOLS[name]
        option = "-S" if name == "C" and "S" not in wanted else option
        raise UsageError(f"{graph.name} needs {word}; give it with {option}, such as {option} 2048")
    return {name: value for name, value in found.items() if name in wanted}


def exclusive(**flags: bool) -> None:
    """Refuse flags that contradict each other."""
    on = [f"--{name}" for name, flag in flags.items() if flag]
    if len(on) > 1:
        raise UsageError(f"{' and '.join(on)} exclude each other; give one")


def with_unit(text: str | None, option: str, example: str) -> str | None:
    """Refuse a bare number on the command line, where nobody can see what it would be taken for."""
    if text is not None and text.strip().replace(".", "", 1).isdigit():
        raise UsageError(f"{option} {text} has no unit; write it as {example}")
    return text


def not_inference(**options: Any) -> None:
    """Refuse options that a training step has not."""
    for name, value in options.items():
        if value is None or value is False or (value == 1 and value is not True):
            continue
        near = "its formats are those of --dtype, such as amp-bf16" if name in _FORMATS else "see roofline train --help"
        raise UsageError(f"--{name} does not apply to --phase train; {near}")


def single(sizes: dict[str, Any], what: str) -> dict[str, Any]:
    """Refuse sizes that span an axis.

    Raises:
        UsageError: Names the option.
    """
    for name, value in sizes.items():
        if isinstance(value, list):
            raise UsageError(f"{what} belongs to one point; give -{name} one number")
    return sizes
