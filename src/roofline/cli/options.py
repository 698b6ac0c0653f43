"""Groups of options that commands share, and the reading of their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.analysis.estimates import MODES as MODES
from roofline.analysis.training.step import usual_precision
from roofline.analysis.whatif import what_if
from roofline.cli.app import completion
from roofline.cli.output import note, quieten, show, write_csv, write_json
from roofline.cost import REGIME, REGIMES
from roofline.frontends.source import has_phases, load_program
from roofline.hardware.chip import Chip
from roofline.hardware.cluster import Cluster
from roofline.hardware.cluster import cluster as find_cluster
from roofline.hardware.library import chip as find_chip
from roofline.hardware.library import chips as chip_names
from roofline.hardware.library import is_path, with_host
from roofline.hardware.settings import change, with_settings
from roofline.ir.datafile import read_toml
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import RooflineError, UnknownChip, UsageError
from roofline.ir.files import user_path
from roofline.ir.graph import Graph, check_symbol
from roofline.ir.report import Report
from roofline.ir.sizes import LARGEST
from roofline.ir.units import parse
from roofline.passes.fusion.fuse import POLICIES
from roofline.passes.rewriting.layouts import LAYOUTS
from roofline.passes.training.mixed_precision import PRECISIONS, training_graph
from roofline.programs.library import models as model_names
from roofline.view.charts.chart import Chart, checked_suffix

#: Points that one call evaluates at most.
MAX_POINTS = 10_000
_PHASES = ("prefill", "decode", "forward", "train")
complete_models = completion(model_names)
complete_chips = completion(chip_names, listed=True)
complete_formats = completion(lambda: (*DTYPES, *PRECISIONS), listed=True)

Text = str | None


def option(
    spec: str, help: str, panel: str | None = None, *, complete: Any = None, default: str = "", **more: Any
) -> Any:
    """Describe an option.

    Args:
        spec: Its names and what stands for its value: ``--seq -S N``.
        help: What it is.
        panel: Its group in the help.
        complete: What a shell offers: words, or a function of :func:`~roofline.cli.app.completion`.
        default: What holds where it is not given, in words.
        more: As for :func:`typer.Option`.
    """
    names = [word for word in spec.split() if word.startswith("-")]
    return typer.Option(
        *names, metavar=" ".join(spec.split()[len(names) :]) or None, rich_help_panel=panel,
        autocompletion=completion(lambda: complete) if isinstance(complete, tuple) else complete,
        help=f"{help} \\[default: {default}]" if default else help, show_default=False, **more,
    )  # fmt: skip


def argument(metavar: str, help: str, complete: Any = None) -> Any:
    """Describe an argument."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete, show_default=False)


#: Groups of options in the help of a command.
_program, _parallel = partial(option, panel="Program"), partial(option, panel="Parallelism", default="1")
_size, _run, limit = partial(option, panel="Sizes"), partial(option, panel="Run"), partial(option, panel="Limits")
_format, _output = partial(_program, complete=complete_formats), partial(option, panel="Output")

Model = Annotated[str, argument(
    "MODEL", "A shipped name, a model .toml, a workload .json, a config.json or its folder, an .onnx, .mlir or .hlo "
    "file, an operator with its sizes ('gemm m=512 n=512 k=512'), or your own script.py, which is run.",
    complete_models)]  # fmt: skip
OneChip = Annotated[str, argument("CHIP", "A shipped name, a chip .toml, or a cluster.", complete_chips)]
MaybeChip = Annotated[Text, argument("[CHIP]", "Where it ran, or is to run.", complete_chips)]
RanOn = Annotated[
    Text, option("--chip CHIP", "Where it ran, for what names no chip of its own.", complete=complete_chips)
]
Measured = Annotated[Text, option("--measured TIME", "The measured time of one run, such as 41ms.")]
Quiet = Annotated[bool, _output("--quiet -q", "No notes and no progress: only the result, and errors.")]
Html = Annotated[Path | None, _output("--html OUT.html", "Write a page here as well, the whole file or nothing.")]
Plot = Annotated[Path | None, _output("--plot FILE", "Draw a chart as well: a .png, .svg, .pdf or .html.")]
Tensor = Annotated[int, _parallel("--tp N", "Devices that share every layer.")]
Pipeline = Annotated[int, _parallel("--pp N", "Stages of a pipeline.")]
Backend = Annotated[Text, option(
    "--backend NAME", "A serving stack: vllm, sglang or trtllm; its policy, overhead and range.", "Server",
    default="none, without overhead")]  # fmt: skip
Experts = Annotated[int, _parallel("--ep N", "Groups of devices that share the experts.")]
Mode = Annotated[str, _run("--mode MODE", "eager, graph or compiled.", complete=MODES, default="eager")]
Regime = Annotated[str | None, _run(
    "--regime REGIME", "program: activations come from the kernel before; cold: all from main memory; warm: what fits "
    "is in the cache.", complete=REGIMES, default=REGIME)]  # fmt: skip
Tf32 = Annotated[bool | None, _run(
    "--tf32/--no-tf32", "Let fp32 matmuls and convolutions use tf32, or neither.",
    default="convolutions on NVIDIA, as PyTorch")]  # fmt: skip
Layout = Annotated[Text, _program(
    "--layout LAYOUT", f"Of images: {', '.join(LAYOUTS)}.", complete=tuple(LAYOUTS), default="as they are")
]  # fmt: skip
Prune = Annotated[
    Text, _program("--prune WHAT", "Remove shares: heads=0.25,channels=0.5,layers=0.5, or store weights 2:4.")
]


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """Number formats of what runs."""

    dtype: Annotated[Text, _format("--dtype FORMAT", "Format of everything, such as bf16.")] = None
    weights: Annotated[Text, _format("--weights FORMAT", "Of the weights, such as int8, or int4,*.down*=int8.")] = None
    activations: Annotated[Text, _format("--activations FORMAT", "Of what matmuls take in, such as fp8.")] = None
    cache: Annotated[Text, _format("--cache FORMAT", "Of the KV cache, such as int8.")] = None

    @property
    def formats(self) -> dict[str, Any]:
        """Return them by name."""
        return {"dtype": self.dtype, "weights": self.weights, "activations": self.activations, "cache": self.cache}


@dataclass(frozen=True, kw_only=True)
class ProgramOptions(FormatOptions):
    """What runs: its phase and number formats, and the passes that change it."""

    phase: Annotated[Text, _program(
        "--phase PHASE", "prefill, decode, forward or train.", complete=_PHASES, default="the model's")
    ] = None  # fmt: skip
    dtype: Annotated[Text, _format("--dtype FORMAT", "Format of everything, such as bf16; to train, amp-bf16.")] = None
    fuse: Annotated[Text, _program(
        "--fuse POLICY", f"Fuse kernels: {', '.join(POLICIES)}.", complete=tuple(POLICIES))] = None  # fmt: skip
    layout: Layout = None
    prune: Prune = None
    tp: Tensor = 1
    pp: Pipeline = 1
    ep: Experts = 1

    @property
    def is_training(self) -> bool:
        """Tell whether a step of training is asked for."""
        return self.phase == "train"

    def graph(self, model: str, cluster: Cluster | None = None, *, step: bool = True) -> Graph:
        """Build the program, change it (:func:`roofline.what_if`), and say what a reader should know of it.

        Of phase ``train``, a whole step on one device, formats as those of ``roofline train``; the forward program
        alone without ``step``.
        """
        if self.is_training and step:
            self.refuse_inference(tp=self.tp, pp=self.pp, ep=self.ep)
            graph = _training_step(what_if(trainable(model), prune=self.prune, layout=self.layout), self.dtype)
        else:
            names = ("weights", "activations", "cache", "fuse", "layout", "prune", "tp", "pp", "ep")
            changes: dict[str, Any] = {name: getattr(self, name) for name in names}
            graph = what_if(load_program(model, self.phase, self.dtype), cluster=cluster, **changes)
        for text in graph.info.notes:
            note(f"{graph.name}: {text}")
        return graph

    def refuse_inference(self, **others: Any) -> None:
        """Refuse options that a training step has not: those of inference, and any others that are set."""
        formats = {"weights": self.weights, "cache": self.cache, "activations": self.activations}
        for name, value in {**formats, "fuse": self.fuse, **others}.items():
            if value is None or value is False or (value == 1 and value is not True):
                continue
            hint = (
                "its formats are those of --dtype, such as amp-bf16" if name in formats else "see roofline train --help"
            )
            raise UsageError(f"--{name} does not apply to --phase train; {hint}")


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """How copies of the model share the work."""

    dp: Annotated[int, _parallel("--dp N", "Copies of the model, each with its part of the batch.")] = 1
    zero: Annotated[int, _parallel(
        "--zero STAGE", "Training: what copies divide: 1 optimizer states, 2 gradients too, 3 weights too.",
        default="0")] = 0  # fmt: skip
    recompute: Annotated[Text, _parallel(
        "--recompute WHAT", "Training: activations computed again: none, selective or full.", default="none",
        complete=("none", "selective", "full"))] = None  # fmt: skip

    def refuse_training(self) -> None:
        """Refuse options of a training step for anything else."""
        for name in ("zero", "recompute"):
            if getattr(self, name):
                raise UsageError(f"--{name} belongs to training: give --phase train, or use roofline train")

    def share(self, sizes: dict[str, Any], each: int = 1, cluster: Cluster | None = None) -> dict[str, Any]:
        """Return the sizes of one of the copies, each with its part of the batch.

        Raises:
            UsageError: More copies than there is work for or than the cluster has devices for.
        """
        if self.dp < 1:
            raise UsageError(f"--dp {self.dp}: expected a whole number from 1")
        if self.dp == 1:
            return sizes
        if "B" not in sizes:
            raise UsageError(f"--dp {self.dp}: this program has no batch that copies could share; nearest: --dp 1")
        batches = sizes["B"] if isinstance(sizes["B"], list) else [sizes["B"]]
        if min(batches) < self.dp:
            raise UsageError(
                f"--dp {self.dp}: a batch of {min(batches)} cannot be shared by so many copies; "
                f"nearest: --dp {min(batches)}, or -B {self.dp}"
            )
        if cluster is not None:
            cluster.span(each * self.dp)
        parts = [-(-batch // self.dp) for batch in batches]
        note(f"each of {self.dp} copies runs its part of the batch; throughput is that of one copy")
        return {**sizes, "B": parts if isinstance(sizes["B"], list) else parts[0]}


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """How long sequences are."""

    seq: Annotated[Text, _size("--seq -S N", "Prompt in prefill, context in decode, sequence in forward.")] = None
    context: Annotated[
        Text, _size("--context -C N", "Context of the decoder, where -S is the length of the encoder.")
    ] = None

    def texts(self) -> dict[str, str]:
        """Return the text given for each symbol."""
        texts = {"B": getattr(self, "batch", None), "S": self.seq, "C": self.context}
        return {name: text for name, text in texts.items() if text is not None}

    def _numbers(self, single: str = "") -> dict[str, Any]:
        """Return the sizes that were given by symbol; ``single`` is what takes no more than one number of each."""
        sizes = {name: whole_numbers(text, _SYMBOLS[name][1]) for name, text in self.texts().items()}
        lists = [name for name, value in sizes.items() if isinstance(value, list)]
        if single and lists:
            raise UsageError(f"-{lists[0]} {self.texts()[lists[0]]}: {single} one point; give -{lists[0]} one number")
        return sizes

    def of(self, graph: Graph, number: int = 1) -> dict[str, Any]:
        """Return the sizes that a program uses, whole numbers or lists of them.

        Args:
            graph: The program.
            number: How many programs or chips are evaluated at each point.

        Raises:
            UsageError: A size that the program needs was not given, or there are too many points.
        """
        sizes = self._numbers()
        points = number * prod(len(value) for value in sizes.values() if isinstance(value, list))
        if points > MAX_POINTS:
            raise UsageError(f"{points} points; allowed: at most {MAX_POINTS} per call")
        return _matched(graph, sizes)

    def point(self, graph: Graph, what: str) -> dict[str, Any]:
        """Return one number for each size of a program.

        Raises:
            UsageError: Several numbers for one size; names the option and what is of one point, as ``what`` says.
        """
        return _matched(graph, self._numbers(f"{what} is of"))

    def some(self, graph: Graph) -> dict[str, int]:
        """Return the sizes that were given, one number each; the others stay symbols."""
        sizes = _named(graph, self._numbers("a listing shows"))
        return {name: value for name, value in sizes.items() if name in graph.symbols}


@dataclass(frozen=True, kw_only=True)
class SizeOptions(LengthOptions):
    """How large a batch is and how long sequences are."""

    batch: Annotated[Text, _size(
        "--batch -B N", "Batch: 8; where a sweep makes sense also several: 1,8,32 or 1:128 or 1:128:8.", default="1",
    )] = None  # fmt: skip


Settings = Annotated[list[str] | None, option(
    "--set NAME=VALUE", "Change a figure of the chip: sram=4MiB, bf16=1200TFLOP/s, memory_bandwidth=x2, by its path, "
    "memory.L2.capacity=64MiB; again for more.", "Chip", default="as is")]  # fmt: skip
Host = Annotated[Text, _run(
    "--host FACTOR|FILE", "Host of eager runs: 0.5 is twice as fast; or the .toml that calibrate wrote there.",
    default="as the chip's file says")]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ChipOptions:
    """Figures of the chip that are changed, to see what they would buy."""

    settings: Settings = None

    def chip(self, name: str) -> Chip:
        """Return the chip of that name, with its figures changed."""
        return self.changed(find_chip(name))

    def chips(self, text: str) -> list[Chip]:
        """Return the chips that commas part, each with its figures changed; of a cluster, one of its devices."""
        return [self.device(name) for name in names(text)]

    def device(self, name: str) -> Chip:
        """Return a chip, or one device of a cluster, with its figures changed."""
        return self.cluster(_single(name)).device

    def cluster(self, name: str) -> Cluster:
        """Return the cluster of that name, with the figures of its chip changed."""
        group = cluster_of(name)
        return group.model_copy(update={"chip": self.changed(group.chip)})

    def some(self, name: str | None) -> Chip | None:
        """Return the chip of that name, with its figures changed; ``None`` where no chip is named."""
        self.need(name)
        return None if name is None else self.chip(name)

    def need(self, name: str | None) -> None:
        """Refuse to change figures where no chip is named."""
        if name is None and self.settings:
            raise UsageError(f"--set {self.settings[0][:60]} changes a chip, and none is named; name one")

    def changed(self, chip: Chip) -> Chip:
        """Return a chip with its figures changed, and say what they were."""
        new = with_settings(chip, self.settings or ())
        for text in self.settings or ():
            note(f"{new.name}: {change(chip, text)}")
        return new


@dataclass(frozen=True, kw_only=True)
class RunOptions(ChipOptions):
    """How it runs."""

    mode: Mode = "eager"
    tf32: Tf32 = None
    regime: Regime = None
    host: Host = None

    def changed(self, chip: Chip) -> Chip:
        """Return a chip with its figures changed, and with this host."""
        return with_host(super().changed(chip), self.host)

    @property
    def keywords(self) -> dict[str, Any]:
        """The same as keywords of the library."""
        return {"mode": self.mode, "tf32": self.tf32, "regime": self.regime or REGIME}


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """What a run may take."""

    memory_limit: Annotated[Text, limit("--memory-limit SIZE", "Such as 72GiB.", default="the chip's memory")] = None
    latency_limit: Annotated[Text, limit("--latency-limit TIME", "Of one run, such as 50ms.")] = None
    memory: Annotated[Text, limit("--memory SIZE", "As --memory-limit.", hidden=True)] = None
    latency: Annotated[Text, limit("--latency TIME", "As --latency-limit.", hidden=True)] = None

    def limits(self) -> tuple[str | None, str | None]:
        """Return the limits of memory and of time.

        Raises:
            UsageError: A number without a unit.
        """
        for name, unit in (("memory", "B"), ("latency", "s")):
            with_unit(getattr(self, f"{name}_limit"), f"--{name}-limit", unit)
            with_unit(getattr(self, name), f"--{name}", unit)
        return self.memory_limit or self.memory, self.latency_limit or self.latency


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is printed."""

    as_json: Annotated[bool, _output("--json", "Print JSON.")] = False
    as_csv: Annotated[bool, _output("--csv", "Print CSV, one line per row.")] = False
    xlsx: Annotated[Path | None, _output("--xlsx FILE", "Write the rows as a workbook of Excel here as well.")] = None
    quiet: Quiet = False

    def __post_init__(self) -> None:
        if self.quiet:
            quieten()
        exclusive(json=self.as_json, csv=self.as_csv)
        if self.xlsx is not None and self.xlsx.suffix.lower() != ".xlsx":
            raise UsageError(f"--xlsx {self.xlsx}: a workbook's name ends in .xlsx, such as --xlsx rows.xlsx")

    def write(self, report: Report, parts: Iterable[Any], **more: Any) -> None:
        """Print a result, and write it as a workbook where that was asked for.

        Args:
            report: The result, for JSON and CSV.
            parts: The same as tables and lines of text, only made where they are printed.
            more: What its JSON has beside the report's own record.
        """
        if self.xlsx is not None:
            report.to_excel(self.xlsx)
        if self.as_json:
            write_json({**report.record(), **more})
        elif self.as_csv:
            write_csv(report.csv_rows())
        else:
            show(*parts)


@dataclass(frozen=True, kw_only=True)
class ChartOptions(OutputOptions):
    """What is printed, and drawn as well."""

    plot: Plot = None
    chart: Annotated[Text, _output(
        "--chart NAME", "Which chart, where there are several; a wrong name lists them.", default="the usual one")
    ] = None  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plot is not None:
            checked_suffix(self.plot)
        elif self.chart is not None:
            raise UsageError(f"--chart {self.chart} is drawn to a file: give --plot FILE too, such as --plot chart.svg")

    def write(self, report: Report, parts: Iterable[Any], *, drawn: Sequence[Any] = (), **more: Any) -> None:
        """Print a result, and draw a chart of it where that is asked for."""
        if self.plot is not None:
            draw(self.plot, self.chart, report, *drawn)
        super().write(report, parts, **more)


def save_chart(chart: Chart, path: Path) -> None:
    """Write a chart, and say what it warns of."""
    for text in getattr(chart, "warnings", ()):
        note(text)
    chart.save(path)


def draw(path: Path, name: str | None, *results: Any) -> None:
    """Draw a chart of a result, and say which others it has."""
    from roofline.view.charts.every import charts_of, named  # these import all that has a chart

    charts = charts_of(*results)
    save_chart(named(charts, name, "--chart"), path)
    others = ", ".join(other for other in charts if other != (name or next(iter(charts))))
    note(f"{path}: chart {name or next(iter(charts))}{f'; --chart has also {others}' if others else ''}")


# --- values -----------------------------------------------------------------------------------------------------------

#: What each symbol is called and which option gives it.
_SYMBOLS = {"B": ("a batch", "-B"), "S": ("a sequence length", "-S"), "C": ("a context length", "-C")}
_RANGE = re.compile(r"\s*([0-9]{1,40})(?::([0-9]{1,40})(?::([0-9]{1,40}))?)?\s*", re.ASCII)


def whole_numbers(text: str, option: str) -> int | list[int]:
    """Read ``8``, ``1,8,32``, ``1:128`` or ``1:128:8``; both ends of a range are in it.

    Raises:
        UsageError: Anything else, a number out of range, or too many.

    Example:
        >>> whole_numbers("1,4:8:2", "-B")
        [1, 4, 6, 8]
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(
                f"{option} {text[:60]!r}: expected whole numbers from 1, such as 8 or 1,8,32 or 1:128 or 1:128:8"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not 1 <= first <= last <= LARGEST or step < 1:
            raise UsageError(f"{option} {part[:60]!r}: allowed: from 1 to 10**12, and ranges upwards")
        if len(numbers) + (last - first) // step + 1 > MAX_POINTS:
            raise UsageError(f"{option} {text[:60]!r}: allowed: at most {MAX_POINTS} numbers; give a step")
        numbers += range(first, last + 1, step)
    return numbers[0] if len(numbers) == 1 else numbers


def measured_time(text: str | None) -> str | None:
    """Return the text of ``--measured``, refused where it has no unit."""
    return with_unit(text, "--measured", "s")


def with_unit(text: str | None, option: str, unit: str) -> str | None:
    """Refuse what is no quantity or below 0, by the option's name; a bare number, whose unit nobody can see."""
    if text is not None and parse(text, unit, option) < 0:
        raise UsageError(f"{option} {text[:60]}: expected a positive quantity, above zero")
    return text


def exclusive(**flags: bool) -> None:
    """Refuse flags that contradict each other."""
    on = [f"--{name}" for name, flag in flags.items() if flag]
    if len(on) > 1:
        raise UsageError(f"{' and '.join(on)} exclude each other; give one")


def _named(graph: Graph, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Sort sizes under the graph's own names, with a note on those without use; ``-S`` of a decode step is C."""
    symbols, sizes = graph.symbols, dict(numbers)
    if "C" in symbols and "S" not in symbols and "C" not in sizes and "S" in sizes:
        sizes["C"] = sizes.pop("S")
    for name in sorted(sizes.keys() - symbols):
        word, option = _SYMBOLS[name]
        check_symbol(graph, name, f"{option} {sizes[name]}")
        note(f"{graph.name} has no use for {word}; {option} is ignored")
    return sizes


def _matched(graph: Graph, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Give each symbol of a graph its size."""
    symbols, sizes = graph.symbols, _named(graph, numbers)
    if "B" in symbols:
        sizes.setdefault("B", 1)
    for name in sorted(symbols - sizes.keys()):
        if name not in _SYMBOLS:
            raise UsageError(
                f"{graph.name} needs {name}, for which there is no option; "
                f"in Python: rl.estimate(rl.load_program(...), chip, {name}=128)"
            )
        word, option = _SYMBOLS[name]
        option = "-S" if name == "C" and "S" not in symbols else option
        raise UsageError(f"{graph.name} needs {word}; give it with {option}, such as {option} 2048")
    return {name: value for name, value in sizes.items() if name in symbols}


# --- programs of training ---------------------------------------------------------------------------------------------


def trainable(model: str) -> Graph:
    """Return the forward program that is trained: of phase ``train``, with a loss, where there is one."""
    if not has_phases(model):
        return load_program(model)
    try:
        return load_program(model, "train")
    except UsageError as error:
        try:
            graph = load_program(model, "forward")
        except RooflineError:
            raise error from None
    note(f"{graph.name} has no phase train: the step is that of its forward program, without a loss")
    return graph


def _training_step(graph: Graph, precision: str | None) -> Graph:
    """Append backward and update."""
    name = usual_precision(graph) if precision is None else precision
    master = name in PRECISIONS and PRECISIONS[name].master
    return training_graph(graph, precision=name, gradients="fp32" if master else None)


def one_chip(argument: str | None, option: str | None, name: str = "--chip") -> str | None:
    """Return the chip that was given, as an argument or by an option.

    Raises:
        UsageError: Both were.
    """
    if argument is not None and option is not None:
        raise UsageError(f"{argument} and {name} {option}: the chip is given twice; give it once")
    return option if argument is None else argument


# --- chips ------------------------------------------------------------------------------------------------------------


def several(text: str, option: str) -> list[int]:
    """Read whole numbers as :func:`whole_numbers` does, one alone as a list."""
    numbers = whole_numbers(text, option)
    return [numbers] if isinstance(numbers, int) else numbers


def names(text: str) -> list[str]:
    """Return the names that commas part; refuse commas without one."""
    listed = [name.strip() for name in text.split(",")]
    if len(listed) > 1 and "" in listed:
        raise UsageError(f"{text[:60]!r}: a comma with no name beside it")
    return listed


def say_alias(model: str, title: str) -> None:
    """Note where a name stands for the file of a model of another name."""
    plain = "".join(letter for letter in model.lower() if letter.isalnum())
    if not is_path(model) and "".join(letter for letter in title.lower() if letter.isalnum()) not in plain:
        note(f"{model} has the layers of {title}, whose name is shown")


def _single(text: str) -> str:
    """Return a name.

    Raises:
        UsageError: Commas part several.
    """
    if len(every := names(text)) > 1:
        raise UsageError(f"{text[:60]}: several chips; this takes one, such as {every[0]}")
    return text


def cluster_of(name: str) -> Cluster:
    """Return the cluster of that name; of a chip's, and of the first of several names, a node of eight."""
    if len(every := names(name)) > 1:
        return find_cluster(cluster_of(every[0]).device)
    try:
        return find_cluster(find_chip(name))
    except RooflineError as error:
        try:
            return find_cluster(name)
        except UnknownChip:
            raise error from None
        except RooflineError as other:
            raise (other if _describes_cluster(name) else error) from None


def _describes_cluster(name: str) -> bool:
    """Tell whether a file that is neither a chip nor a cluster was to be a cluster: it names a chip, or nodes."""
    if not is_path(name):
        return True
    try:
        data = read_toml(user_path(name), UsageError)
    except UsageError:
        return False
    return not data.keys().isdisjoint({"chip", "nodes", "devices_per_node"})


def varied_figure(text: str) -> tuple[str, str]:
    """Read the name and the values of a figure that varies.

    Raises:
        UsageError: Text that is no such pair.
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    if not (equals and name and values):
        raise UsageError(f"--set {text[:60]}: expected NAME=A..B or NAME=A,B,C")
    return name, values
