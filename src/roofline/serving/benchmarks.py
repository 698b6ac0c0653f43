"""Tables of deployments that others measured, row by row to what we predict: the format of aiconfigurator's table.

A row names ``model_path, system, backend, precision, isl, osl, batch_size`` and the sizes ``tp_size, pp_size,
attention_dp_size, moe_tp_size, moe_ep_size`` (https://github.com/ai-dynamo/aiconfigurator, ``silicon_sample.csv``); an
empty cell and 0 stand for 1, an empty precision for 16 bits. Times to the first token and per further token, with a
range of the latter, are added; other columns are kept. A row that cannot be predicted says why in ``error``.

Most rows are InferenceMAX's (https://github.com/SemiAnalysisAI/InferenceX), whose servers were started as
:mod:`roofline.serving.recipes` says, and two of its habits are read as such:

- GPUs are stated by flags that hold side by side: ``tp 8, ep 8`` are 8 GPUs, whose product the table has as ``tp_size``
  64. Where both of ``moe_tp_size`` and ``moe_ep_size``, or of ``tp_size`` and ``attention_dp_size``, exceed 1, the
  larger counts the GPUs.
- Its client draws lengths from 80 to 100 % of those stated (``--random-range-ratio 0.8``), of :data:`SCENARIOS`.
  Requests of other lengths are all alike, which keeps them in step where prompts have steps of their own; where they
  have not, a client's time pulls them apart as much.

``batch_size`` counts the requests of each group of attention data parallelism that is stated, unless that comes to more
than InferenceMAX sends: then of all. A column ``spec`` says which rows draft tokens, ``K:ACCEPT`` as for
:func:`roofline.serving.serve`; where it is empty, those of :data:`DRAFTING` do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.analysis.prediction import text
from roofline.hardware.chip import Chip
from roofline.hardware.library import chip as find_chip
from roofline.ir.csvfile import read_rows
from roofline.ir.errors import RooflineError, UsageError, did_you_mean
from roofline.programs.library import find_model
from roofline.programs.modelfile import ModelFile, load_model_file
from roofline.serving.backends import BACKENDS
from roofline.serving.deployment import Deployment, copies, deployment
from roofline.serving.recipes import USUAL, Recipe, recipe
from roofline.serving.repeated import layers_of
from roofline.serving.steady import PLAIN, Speculation, Work, closed_loop, in_copies, speculation
from roofline.serving.steps import StepTimes

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]

#: Columns that a table has; the sizes of the layout are 1 where they are absent.
NEEDED = ("model_path", "system", "backend", "isl", "osl", "batch_size")
#: Columns that are read where they are there.
OPTIONAL = ("precision", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "spec",
            "backend_version")  # fmt: skip
#: Columns that are added.
ADDED = ("ttft_ms", "tpot_ms", "tpot_low_ms", "tpot_high_ms", "error")
#: Prompt and new tokens of InferenceMAX, and the least share of them that a request has.
SCENARIOS, LEAST = frozenset({(1024, 1024), (1024, 8192), (8192, 1024)}), 0.8
#: Requests that each user sends, the first ones all at once (``--num-prompts $((CONC * 10))``).
SENT = 10
#: Requests that it sends at a time at most.
MOST_USERS = 512
#: What a precision means, in any spelling.
PRECISIONS = {
    "": "bf16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp4": "fp4",
    "nvfp4": "fp4",
    "int4": "int4",
}
#: Drafted tokens of public recipes by model, backend and version, and their number under attention data parallelism.
#: InferenceX has images of their own for multi-token prediction
#: (https://github.com/SemiAnalysisAI/InferenceX/pull/1488 and /1489: "off: v1.2.0rc6.post2 / mtp: v1.2.0rc6.post3";
#: ``MTP=`` in benchmarks/single_node/dsr1_fp4_b200_trt_mtp.sh and dsr1_fp8_b200_trt_mtp.sh).
DRAFTING = {("DeepSeek-R1", "trtllm", "1.2.0rc6.post3"): (3, 1)}
#: Share of the drafted tokens that DeepSeek's module has accepted: 85 to 90 % of the second of two
#: (https://arxiv.org/abs/2412.19437, 5.4.3); the same module drafts those after it.
ACCEPTED = 0.85
#: Rows that are looked at together.
CHUNK = 10_000
#: Largest size of a cell.
MOST = 10**7


def bench(table: pd.DataFrame | str | os.PathLike[str] | Iterable[Row]) -> pd.DataFrame:
    """Predict every row of a table of deployments that others measured.

    Args:
        table: A data frame, a CSV file or dictionaries with the columns ``model_path, system, backend, precision, isl,
            osl, batch_size`` and, where they are not 1, ``tp_size, pp_size, attention_dp_size, moe_tp_size,
            moe_ep_size``, and ``spec`` (``K:ACCEPT``) where tokens are drafted.

    Returns:
        The table with ``ttft_ms tpot_ms tpot_low_ms tpot_high_ms`` [ms] and ``error``, which says why a row has none.

    Raises:
        UsageError: A file that is no table.

    Example:
        >>> row = {"model_path": "meta-llama/Llama-3.1-8B", "system": "h100_sxm", "backend": "vllm", "isl": 1000,
        ...        "osl": 200, "batch_size": 8}
        >>> bool(5 < bench([row]).tpot_ms[0] < 15)
        True
    """
    import pandas as pd

    if isinstance(table, str | os.PathLike):
        with read_rows(table, (NEEDED,)) as (_, rows):
            return pd.DataFrame(list(bench_rows(rows)))
    records = table.to_dict("records") if isinstance(table, pd.DataFrame) else table
    return pd.DataFrame(list(bench_rows(records)))  # type: ignore[arg-type]


def misspelt(columns: Sequence[str]) -> list[str]:
    """Say which columns are not read, but are named nearly as one that is not there.

    Example:
        >>> misspelt(["isl", "TP", "comment"])
        ['the column TP is not read; did you mean tp_size?']
    """
    absent = [name for name in OPTIONAL if name not in columns]
    short = {name.removesuffix("_size"): name for name in absent}
    near = {name: short.get(name.lower()) or next(iter(get_close_matches(name.lower(), absent, 1, 0.7)), "")
            for name in columns if name not in (*NEEDED, *OPTIONAL, *ADDED)}  # fmt: skip
    return [f"the column {name[:40]} is not read; did you mean {other}?" for name, other in near.items() if other]


def bench_columns(columns: Sequence[str]) -> list[str]:
    """The columns of the table with predictions, given those of the table without."""
    return [*(name for name in columns if name not in ADDED), *ADDED]


def bench_rows(rows: Iterable[Row], progress: Callable[[float], None] | None = None) -> Iterator[dict[str, Any]]:
    """Predict rows of deployments.

    Args:
        rows: The rows, as :func:`roofline.ir.csvfile.read_rows` has them.
        progress: Called with how many rows are done.

    Yields:
        Each row with :data:`ADDED`, times in milliseconds.
    """
    stream, done = iter(rows), 0
    while chunk := list(islice(stream, CHUNK)):
        added: list[dict[str, Any]] = [dict.fromkeys(ADDED) for _ in chunk]
        groups: dict[Key, list[tuple[int, _Load]]] = {}
        for at, row in enumerate(chunk):
            try:
                key, load = read_row(row)
                groups.setdefault(key, []).append((at, load))
            except RooflineError as error:
                added[at]["error"] = _line(error)
        for number, (key, members) in enumerate(groups.items(), 1):
            _predict(key, members, added)
            if progress is not None:
                progress(done + len(chunk) * number / len(groups))
        done += len(chunk)
        for row, more in zip(chunk, added, strict=True):
            yield {**{name: value for name, value in row.items() if name is not None}, **more}


@dataclass(frozen=True)
class Key:
    """What rows share that one deployment serves."""

    model: str
    system: str
    backend: str
    precision: str
    tp: int
    pp: int
    ep: int
    attention_dp: int
    speculation: Speculation = PLAIN
    recipe: Recipe = USUAL


@dataclass(frozen=True)
class _Load:
    """Requests of a row."""

    prompt: float
    new_tokens: float
    users: float
    spread: float


def _predict(key: Key, members: Sequence[tuple[int, _Load]], added: list[dict[str, Any]]) -> None:
    """Fill in the rows of one deployment."""
    try:
        served, backend = served_by(key), BACKENDS[key.backend]
        for work, places, users in works(served.copy, key, [load for _, load in members]):
            first, each = times(served.copy.steps(), work, users, copies(served))
            for place, ttft, tpot in zip(places, first.tolist(), each.tolist(), strict=True):
                values = (ttft, tpot, tpot * backend.low, tpot * backend.high)
                added[members[place][0]].update(zip(ADDED, (1e3 * value for value in values), strict=False))
    except RooflineError as error:
        for at, _ in members:
            added[at]["error"] = _line(error)


def works(served: Deployment, key: Key, some: Sequence[_Load]) -> Iterator[tuple[Work, list[int], Any]]:
    """Yield loads by their lengths: the work, the places of those that have it, and their users."""
    drafts = key.speculation
    if drafts.drafted:  # by a module of one more layer
        share = drafts.drafted / layers_of(str(served.model), served.dtype, served.options)
        drafts = replace(drafts, seconds=lambda batch, context: share * served.steps().decode(batch, context))
    alike: dict[tuple[float, float, float], list[int]] = {}
    for place, load in enumerate(some):
        alike.setdefault((load.prompt, load.new_tokens, load.spread), []).append(place)
    for (prompt, new, spread), places in alike.items():
        work = replace(served.work(prompt, new, drafts, spread), polls=key.recipe.polls, patience=key.recipe.patience)
        yield work, places, np.array([some[at].users for at in places], dtype=float)


def times(steps: StepTimes, work: Work, users: Any, servers: int = 1) -> tuple[Any, Any]:
    """Return the time to the first token that a client measures, and that of each further one [s]."""
    state = in_copies(partial(closed_loop, steps, work), users, servers)
    return state.over(SENT), state.per_token


def _line(error: RooflineError) -> str:
    return " ".join(str(error).split())[:600]


# --- what a row says --------------------------------------------------------------------------------------------------


def read_row(row: Row) -> tuple[Key, _Load]:
    if None in row:
        raise UsageError("more cells than columns")
    words = {name: _word(row, name, allowed) for name, allowed in (("precision", PRECISIONS), ("backend", BACKENDS))}
    model, system = text(row, "model_path"), text(row, "system").replace("_", "-")
    if not model or not system:
        raise UsageError(f"no {'system' if model else 'model_path'}")
    find_model(model)
    find_chip(system)
    prompt, new = (_size(row, name, needed=True) for name in ("isl", "osl"))
    tp, pp, ep, groups = _layout(row)
    users, each = _size(row, "batch_size", needed=True), _size(row, "attention_dp_size") or 1
    users *= each if each == groups or users * each <= MOST_USERS else 1
    stated, backend, precision = (prompt, new) in SCENARIOS, words["backend"], PRECISIONS[words["precision"]]
    label = (backend, text(row, "backend_version"), model.rpartition("/")[2], system, precision, f"tp{tp} dp{groups}")
    started = recipe((*label, f"{prompt}/{new}"), users, stated)
    mixed = BACKENDS[backend].mixed if started.mixed is None else started.mixed
    spread = 1 - LEAST if stated or mixed else 0.0
    mean = 1 - spread / 2 if stated else 1.0
    drafts = _drafted(row, model, backend, groups)
    key = Key(model, system, backend, precision, tp, pp, ep, groups, drafts, started)
    return key, _Load(max(round(prompt * mean), 1), max(round(new * mean), 1), users, spread)


def _drafted(row: Row, model: str, backend: str, groups: int) -> Speculation:
    """Return what a row drafts: as it says, or as the recipe does that it is known to be of."""
    if spec := text(row, "spec"):
        return speculation(spec)
    one, shared = DRAFTING.get((model.rpartition("/")[2], backend, text(row, "backend_version")), (0, 0))
    return Speculation(shared if groups > 1 else one, ACCEPTED) if one else PLAIN


def _word(row: Row, name: str, allowed: Mapping[str, Any]) -> str:
    word = text(row, name).lower()
    if word not in allowed:
        raise UsageError(
            f"{name} {word[:40]!r}; allowed: {', '.join(filter(None, allowed))}" + did_you_mean(word, allowed)
        )
    return word


def _size(row: Row, name: str, needed: bool = False) -> int:
    """A cell as a whole number; 0 where it is empty or no number at all."""
    cell = text(row, name)
    try:
        number = float(cell if cell.lower() not in ("", "nan") else 0)
    except ValueError:
        number = -1.0
    if not int(needed) <= number <= MOST or number != int(number):
        least = "1" if needed else "0"
        raise UsageError(f"{name}={cell[:40]!r}: expected a whole number from {least} to {MOST}")
    return int(number)


def _layout(row: Row) -> tuple[int, int, int, int]:
    """Devices of a group, stages, groups of experts, groups of attention data parallelism."""
    tp, pp, groups, shares, ep = (
        _size(row, f"{name}_size") or 1 for name in ("tp", "pp", "attention_dp", "moe_tp", "moe_ep")
    )
    devices = tp * groups
    if shares > 1 and ep > 1:
        devices = ep = max(shares, ep)
        groups = devices if groups > 1 else 1
    elif tp > 1 and groups > 1:
        devices = groups = ep = max(tp, groups)
    return devices // groups, pp, ep if devices % ep == 0 else 1, groups


# --- which formats a stack has for a precision ------------------------------------------------------------------------


@lru_cache(maxsize=64)
def served_by(key: Key) -> Deployment:
    """Return what serves the rows of a key.

    Raises:
        RooflineError: A layout or a format that the model or the chip does not have.
    """
    file, chip = load_model_file(find_model(key.model)), find_chip(key.system)
    if "layers" not in file.sizes or file.family.partition("-")[0] != "decoder":
        raise UsageError(f"{file.name} is no decoder")
    ep = key.ep if "experts" in file.sizes else 1
    formats = _formats(file, key.precision, chip) | key.recipe.options
    served = deployment(key.model, chip, tp=key.tp, pp=key.pp, attention_dp=key.attention_dp, ep=ep,
                        backend=key.backend, **formats)  # fmt: skip
    each = served.overhead
    return replace(served, overhead=replace(each, sequence=each.sequence / key.recipe.stream))


def _formats(file: ModelFile, precision: str, chip: Chip) -> dict[str, Any]:
    """The formats of the published checkpoint of a precision.

    Of dense models all matrices of the layers, and the cache in 8 bits (nvidia/Llama-3.1-70B-Instruct-FP8 and -FP4). Of
    mixtures of experts fp8 is scaled by blocks as DeepSeek-V3's, with a cache in 16 bits; fp4 has experts' and dense
    blocks in nvfp4, attention and routers in 16 bits and an fp8 cache (nvidia/DeepSeek-R1-FP4, ``exclude_modules`` and
    ``kv_cache_quant_algo`` of hf_quant_config.json); int4 has routed experts in groups of 32 (moonshotai/Kimi-K2.5).
    Models whose own experts have 4 bits run as published, on chips that multiply 4 bits with activations in mxfp8 and
    padded widths (openai/gpt-oss-120b; vLLM, ``VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8``).
    """
    options, experts = file.options, "experts" in file.sizes
    if precision == "fp4" and "expert_dtype" in options:
        return _own_experts(file) if "fp4" in chip.matrix else {}
    if precision == "bf16" or not experts:
        narrow = {"fp8": ("fp8", "fp8"), "fp4": ("nvfp4", "fp8"), "int4": ("int4-g128", None)}
        weights, cache = narrow.get(precision, (None, None))
        return {"weights": weights, "cache": cache, **({"linear_dtype": "bf16"} if "linear_dtype" in options else {})}
    if precision == "fp8":
        return {"weights": "fp8-block"}
    if precision == "int4":
        return {"weights": "*=none,*.moe.gate_up=int4-g32-sym,*.moe.down=int4-g32-sym"}
    dense = ",*.mlp.*=nvfp4" if "dense_layers" in file.sizes else ""
    wide = {"linear_dtype": "bf16"} if "linear_dtype" in options else {}
    return {"weights": f"*=none,*.moe.*=nvfp4,*.router*=none{dense}", "activations": "nvfp4", "cache": "fp8", **wide}


def _own_experts(file: ModelFile) -> dict[str, Any]:
    stored = str(file.options["expert_dtype"])
    padded = -(-int(file.sizes["intermediate"]) // 256) * 256
    return {"weights": f"*=none,*.moe.gate_up={stored},*.moe.down={stored}", "activations": "mxfp8", "cache": "fp8",
            "expert_dtype": "bf16", "intermediate": padded}  # fmt: skip
