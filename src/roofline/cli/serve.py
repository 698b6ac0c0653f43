"""``roofline serve``: what a server of a model gives its users, over the load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from roofline.cli import options as opt
from roofline.cli import simulation, tables
from roofline.cli.app import PREDICT, command
from roofline.cli.serve_bench import write_bench
from roofline.cli.tables import heading, span, time_text
from roofline.ir.errors import UsageError
from roofline.ir.units import format_si
from roofline.serving import Service
from roofline.serving import serve as predict
from roofline.serving.deployment import BLOCK, CHUNK, MAX_SEQUENCES, MEMORY_SHARE, copies

_Model = Annotated[
    opt.Text, opt.argument("MODEL", "A shipped name, a model .toml or a config.json.", opt.complete_models)
]
_Chip = Annotated[opt.Text, opt.argument("CHIP", "A shipped name, a chip .toml, or a cluster.", opt.complete_chips)]
_Prompt = Annotated[int | None, opt.option("--prompt N", "Tokens of each prompt.", "Sizes", min=1)]
_New = Annotated[int | None, opt.option("--new-tokens N", "Tokens that each request gets.", "Sizes", min=1)]
_Bench = Annotated[Path | None, opt.option(
    "--bench FILE.csv", "Predict measured deployments instead, a row each: columns model_path, system, backend, "
    "precision, isl, osl, batch_size, tp_size and so on; - for stdin.", "Program")]  # fmt: skip
_Out = Annotated[str, opt.option("--output -o OUT.csv", "Where --bench writes; - for stdout.", default="-")]
#: Points of a range A..B of rates.
_RATES = 9


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a server runs a model: its devices, formats and scheduling."""

    tp: opt.Tensor = 1
    pp: opt.Pipeline = 1
    ep: Annotated[int | None, opt.option(
        "--ep N", "Devices over which whole experts are spread, of tp x attention-dp.", "Parallelism",
        default="attention-dp", min=1)] = None  # fmt: skip
    attention_dp: Annotated[int, opt.option(
        "--attention-dp N", "Groups of tp devices that attend to sequences of their own.", "Parallelism", default="1",
        min=1)] = 1  # fmt: skip
    dtype: Annotated[opt.Text, opt.option("--dtype FORMAT", "Format of everything, such as bf16.", "Program",
                                          complete=opt.complete_formats)] = None  # fmt: skip
    weights: Annotated[opt.Text, opt.option(
        "--weights FORMAT", "Of the weights; fp8, int8 and nvfp4 are the activations' too, as in serving stacks.",
        "Program", complete=opt.complete_formats)] = None  # fmt: skip
    activations: Annotated[opt.Text, opt.option("--activations FORMAT", "Of what matmuls take in.", "Program",
                                                complete=opt.complete_formats)] = None  # fmt: skip
    cache: Annotated[opt.Text, opt.option("--cache FORMAT", "Of the KV cache, such as fp8.", "Program",
                                          complete=opt.complete_formats)] = None  # fmt: skip
    chunk: Annotated[int, opt.option("--chunk N", "Tokens of a step of a group at most.", "Server", default=str(CHUNK),
                                     min=1)] = CHUNK  # fmt: skip
    block: Annotated[int, opt.option("--block N", "Tokens of a block of the KV cache.", "Server", default=str(BLOCK),
                                     min=1)] = BLOCK  # fmt: skip
    max_sequences: Annotated[int, opt.option(
        "--max-sequences N", "Requests that run at a time at most.", "Server", default=str(MAX_SEQUENCES), min=1)
    ] = MAX_SEQUENCES  # fmt: skip
    memory_share: Annotated[float, opt.option(
        "--memory-share SHARE", "Of a device's memory that the server uses.", "Server", default=str(MEMORY_SHARE))
    ] = MEMORY_SHARE  # fmt: skip
    mixed: Annotated[bool | None, opt.option(
        "--mixed/--no-mixed", "Read prompts in the steps that decode, or in steps of their own before those.", "Server",
        default="as --backend, else --mixed")] = None  # fmt: skip
    backend: opt.Backend = None
    regime: Annotated[str, opt.option(
        "--regime REGIME", "warm: kernels as serving stacks have them; program, cold: as in estimate.", "Run",
        complete=opt.REGIMES, default="warm")] = "warm"  # fmt: skip

    @property
    def keywords(self) -> dict[str, Any]:
        """The same as keywords of the library."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What its users ask for."""

    concurrency: Annotated[opt.Text, opt.option(
        "--concurrency N", "Users of a closed loop, each with a request at a time: 64, 1,8,64, 1:64 or 1..256, which "
        "doubles.", "Load", default="1..256")] = None  # fmt: skip
    qps: Annotated[opt.Text, opt.option(
        "--qps RATE", "Requests in a second that come at random instead: 2, 0.5,1,2 or 0.5..8.", "Load")
    ] = None  # fmt: skip
    prefix: Annotated[int, opt.option(
        "--prefix N", "First tokens that all prompts share and that the cache holds.", "Load", default="0", min=0)
    ] = 0  # fmt: skip
    spec: Annotated[opt.Text, opt.option(
        "--spec K:ACCEPT", "Speculative decoding: tokens drafted, and the probability that one is accepted.", "Load")
    ] = None  # fmt: skip
    draft: Annotated[opt.Text, opt.option(
        "--draft MODEL|SHARE", "What drafts: a model, or its time for a token as a share of a step's.", "Load",
        default="takes no time")] = None  # fmt: skip
    prefill_chip: Annotated[opt.Text, opt.option(
        "--prefill-chip CHIP", "Read prompts on servers of these chips, and decode on the others.", "Load",
        complete=opt.complete_chips)] = None  # fmt: skip
    prefill_tp: Annotated[int | None, opt.option(
        "--prefill-tp N", "Devices of such a server.", "Load", default="as --tp", min=1)] = None  # fmt: skip
    servers: Annotated[opt.Text, opt.option(
        "--servers X:Y", "How many read prompts and how many decode.", "Load", default="1:1")] = None  # fmt: skip
    link: Annotated[opt.Text, opt.option(
        "--link RATE", "Way of a cache between them, for each chip.", "Load", default="50GB/s")] = None  # fmt: skip
    spread: Annotated[float, opt.option(
        "--spread SHARE", "How much lengths differ, of the longest; those given are the mean then.", "Load",
        default="0")] = 0.0  # fmt: skip
    ttft: Annotated[opt.Text, opt.limit("--ttft TIME", "Time to the first token that is allowed, such as 2s.")] = None
    tpot: Annotated[opt.Text, opt.limit("--tpot TIME", "Time per further token that is allowed, such as 30ms.")] = None
    price: Annotated[float | None, opt.limit("--price P", "Of a chip for an hour, in any currency.", min=0.0)] = None
    watts: Annotated[float | None, opt.limit(
        "--watts W", "Of a chip, for the energy.", default="its power limit", min=0.0)] = None  # fmt: skip

    @property
    def keywords(self) -> dict[str, Any]:
        """The same as keywords of the library."""
        for name in ("ttft", "tpot"):
            opt.with_unit(getattr(self, name), f"--{name}", "s")
        opt.with_unit(self.link, "--link", "B/s")
        return dict(vars(self)) | {
            "concurrency": None if self.concurrency is None else users(self.concurrency),
            "qps": None if self.qps is None else rates(self.qps),
            "servers": None if self.servers is None else _pair(self.servers),
        }


def users(text: str, option: str = "--concurrency") -> int | list[int]:
    """Read ``8``, ``1,8,64``, ``1:64``, or ``1..256``: from 1 on, doubled, and the end.

    Example:
        >>> users("1..10"), users("4:6")
        ([1, 2, 4, 8, 10], [4, 5, 6])
    """
    first, dots, last = text.partition("..")
    if not dots:
        return opt.whole_numbers(text, option)
    low, high = opt.whole_numbers(first, option), opt.whole_numbers(last, option)
    if not (isinstance(low, int) and isinstance(high, int) and low <= high):
        raise UsageError(f"{option} {text[:60]}: expected A..B, such as 1..256")
    return sorted({*(low * 2**i for i in range((high // low).bit_length())), high})


def rates(text: str) -> list[float]:
    """Read ``2``, ``0.5,1`` or ``0.5..8``, some rates between both ends in equal ratios.

    Example:
        >>> rates("1..16")[::4], rates("0.5,1")
        ([1.0, 4.0, 16.0], [0.5, 1.0])
    """
    try:
        if ".." not in text:
            return [float(part) for part in text.split(",")]
        first, last = (float(part) for part in text.split("..", 1))
        return [first * (last / first) ** (i / (_RATES - 1)) for i in range(_RATES)]
    except (ValueError, ZeroDivisionError, OverflowError):
        raise UsageError(f"--qps {text[:60]}: expected requests in a second, such as 2, 0.5,1,2 or 0.5..8") from None


def _given(group: Any) -> list[str]:
    """Return the options of a group that differ from what they are by default, but for those that --bench has too."""
    changed = (one.name for one in fields(group) if getattr(group, one.name) != one.default)
    return [f"--{name.removeprefix('as_').replace('_', '-')}" for name in changed if name not in ("quiet", "as_csv")]


def _pair(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal() and len(text) < 20):
        raise UsageError(f"--servers {text[:60]}: expected X:Y, such as 2:1")
    return int(first), int(last)


@command(PREDICT, "roofline serve llama-3-8b h100-sxm --prompt 4000 --new-tokens 500 --concurrency 1..256 --tpot 30ms")
def serve(
    server: ServerOptions,
    load: LoadOptions,
    steps: simulation.SimulationOptions,
    figures: opt.ChipOptions,
    output: opt.ChartOptions,
    model: _Model = None,
    chip: _Chip = None,
    prompt: _Prompt = None,
    new_tokens: _New = None,
    bench: _Bench = None,
    out: _Out = "-",
) -> None:
    """Predict what a server gives its users over the load: times of tokens, throughput, cost, and what bounds it."""
    single = {"MODEL": model, "CHIP": chip, "--prompt": prompt, "--new-tokens": new_tokens}
    if bench is not None:
        extra = [name for name, value in single.items() if value is not None]
        if extra := extra + [name for group in (server, load, steps, figures, output) for name in _given(group)]:
            raise UsageError(f"--bench FILE.csv takes models, chips and loads from its file and writes CSV; leave "
                             f"{', '.join(extra)} out")  # fmt: skip
        return write_bench(bench, out)
    if out != "-":
        raise UsageError(f"--output {out[:60]}: where --bench FILE.csv writes, and none is given; --csv prints rows")
    if model is None or chip is None:
        missing = " and ".join(name for name in ("MODEL", "CHIP") if single[name] is None)
        raise UsageError(f"serve: no {missing}; or --bench FILE.csv for a table of deployments")
    trace = steps.read()
    prompt, new_tokens = simulation.lengths(trace, prompt, new_tokens)
    loads = simulation.load_of(trace, load.keywords)
    result = predict(model, figures.device(chip), prompt=prompt, new_tokens=new_tokens, **server.keywords, **loads)
    opt.say_alias(model, result.deployment.shown.title)
    runs = steps.runs(result, trace)
    more = {"simulated": [run.record() for run in runs]} if runs else {}
    output.write(result, chain(_parts(result), simulation.parts(result, runs)), drawn=runs[:1], **more)


def _parts(result: Service) -> Iterator[Any]:
    one, each = result.deployment, result.work.speculation
    yield heading(result)
    yield tables.facts([
        ("layout", f"{result.devices} x {one.chip.name}: {one.layout}"),
        ("fits", f"{result.work.running * copies(result.deployment):,.0f} requests at a time"),
        ("prompts", _reading(result)),
        ("drafts", f"{each.drafted} tokens, {each.tokens:.2f} a step come of it" if each.drafted else ""),
        ("stable", f"up to {result.largest_rate:.3g} requests/s at random"),
    ])  # fmt: skip
    yield from ("", _points(result), "")
    yield from _best(result)
    yield ""
    for text in result.not_modelled:
        yield Text(f"not modelled: {text}")


def _reading(result: Service) -> str:
    if result.apart is None or result.reading is None:
        return ""
    readers, decoders = result.apart.servers
    return (f"read by {readers} x {result.reading.devices} {result.reading.chip.name}, decoded on {decoders} x "
            f"{result.deployment.devices}; {time_text(result.apart.transfer)} for a cache between them")  # fmt: skip


def _points(result: Service) -> Any:
    """Return a row for each load; in a closed loop also the first token where all users begin at once."""
    closed, limited = result.load == "users", result.limits.ttft is not None or result.limits.tpot is not None
    priced = result.limits.price is not None
    cells: dict[str, Any] = {
        "users" if closed else "requests/s": lambda row: f"{row['load']:,.4g}",
        "first token": lambda row: _time(row["ttft_s"]),
        **({"all at once": lambda row: _time(row["ttft_first_wave_s"])} if closed else {}),
        "per token": lambda row: _time(row["tpot_s"]),
        "tokens/s": lambda row: f"{row['tokens_per_s']:,.0f}",
        **({"a chip": lambda row: f"{row['tokens_per_s_per_chip']:,.0f}"} if result.devices > 1 else {}),
        "bound": lambda row: row["bound"],
        **({"cost/M": lambda row: tables.known(row["cost_per_million"], "")} if priced else {}),
        **({"allowed": lambda row: tables.yes_or_no(row["meets"])} if limited else {}),
    }  # fmt: skip
    rows = [row | {"load": value} for value, row in zip(result.values, result.records(), strict=True)]
    return tables.table("|".join(cells), [[cell(row) for cell in cells.values()] for row in rows])


def _time(seconds: float | None) -> str:
    return "endless" if seconds is None else time_text(seconds)


def _best(result: Service) -> Iterator[Any]:
    """Say where most tokens come of those loads that are within the limits, and what they cost."""
    at, energy, cost = result.best, result.energy_per_million, result.cost_per_million
    if at is None:
        yield Text("no load is within the limits")
        return
    name, row = "users" if result.load == "users" else "requests/s", result.records()[at]
    watts = format_si(result.summary()["watts_per_chip"] or 0, "W")
    yield tables.facts([
        ("most allowed", f"{result.values[at]:,.4g} {name}, {result.tokens_per_s[at]:,.0f} tokens/s"),
        ("first token", f"{time_text(row['ttft_s'])}  ({span(row['ttft_low_s'], row['ttft_high_s'])})"),
        ("per token", f"{time_text(row['tpot_s'])}  ({span(row['tpot_low_s'], row['tpot_high_s'])})"),
        ("a million", "" if cost is None else f"{cost[at]:,.3g} at {result.limits.price:g} a chip and hour"),
        ("energy", "" if energy is None else f"{energy[at] / 3.6e6:,.3g} kWh a million tokens, at {watts} a chip"),
    ])  # fmt: skip
