"""Workloads: lists of operators and models with sizes, as plain data or JSON, to one graph.

The words are those of the shipped measurements (``measurements/README.md``): ``gemm`` with ``m n k``, ``softmax``
with ``rows cols``, ``attention_sdpa`` with ``batch heads kv_heads q_len kv_len head_dim causal`` and so on. Each word
is one function below; its parameters are its keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from roofline.ir.datafile import read_json
from roofline.ir.dtypes import DTYPES
from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import ModelDataError, RooflineError, ShapeError, UsageError, did_you_mean
from roofline.ir.files import user_path
from roofline.ir.graph import Graph
from roofline.ir.sizes import ceil_div, python_number
from roofline.ops.builder import Builder
from roofline.ops.communication import COLLECTIVES
from roofline.ops.contraction import routing_exponent
from roofline.programs.joining import prefixed
from roofline.programs.library import model

#: A workload file larger than this is refused.
MAX_BYTES = 64 * 2**20
#: Sizes beyond this are refused.
MAX_SIZE = 10**12
#: Entries that a chain of elementwise steps may unroll to.
MAX_CHAIN = 10_000
#: Operands of one elementwise step.
MAX_INPUTS = 64

#: Each word and the function that builds it.
WORDS: dict[str, Callable[..., str]] = {}


def _word(*names: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    def register(build: Callable[..., str]) -> Callable[..., str]:
        WORDS.update(dict.fromkeys(names, build))
        return build

    return register


#: Output formats of matmuls that do not return their operands' format.
_RESULT = {"fp8": "bf16", "fp8-block": "bf16", "nvfp4": "bf16", "mxfp4": "bf16", "mxfp8": "bf16", "fp4": "bf16",
           "int8": "int32", "int4": "int32", "tf32": "fp32"}  # fmt: skip


@_word("gemm", "linear", "matmul", "mm")
def _gemm(b: Builder, m: int, n: int, k: int) -> str:
    return b.op("linear", b.input("a", (m, k)), b.weight("b", (n, k)), dtype=_RESULT.get(b.dtype), name="gemm")


@_word("bmm")
def _bmm(b: Builder, m: int, n: int, k: int, b_: int) -> str:
    left, right = b.input("a", (b_, m, k)), b.input("b", (b_, k, n))
    return b.op("bmm", left, right, dtype=_RESULT.get(b.dtype))


def _flat(b: Builder, n: int, *, op: str, inputs: int = 1) -> str:
    return b.op(op, *(b.input("x", (n,)) for _ in range(inputs)))


for _op in ("copy", "mul_scalar", "relu", "gelu", "silu", "exp", "sigmoid", "tanh"):
    _word(_op)(partial(_flat, op=_op))
for _op in ("add", "mul"):
    _word(_op)(partial(_flat, op=_op, inputs=2))


@_word("fill")
def _fill(b: Builder, n: int) -> str:
    return b.op("fill", shape=(n,))


@_word("cast_fp32")
def _cast(b: Builder, n: int) -> str:
    return b.op("cast", b.input("x", (n,)), dtype="bf16" if b.dtype in ("fp32", "tf32") else "fp32")


@_word("elementwise")
def _elementwise(b: Builder, n: int, inputs: int = 1, count: int = 1) -> str:
    """``count`` steps, each on the result of the one before."""
    if count > MAX_CHAIN:
        raise UsageError(f"count={count}: a chain has at most {MAX_CHAIN} steps")
    if inputs > MAX_INPUTS:
        raise UsageError(f"inputs={inputs}: a step has at most {MAX_INPUTS} operands")
    x = b.input("x", (n,))
    for _ in range(count):
        x = b.op("elementwise", x, *(b.input("y", (n,)) for _ in range(inputs - 1)))
    return x


def _rows(b: Builder, rows: int, cols: int, *, op: str) -> str:
    return b.op(op, b.input("x", (rows, cols)), dtype="int64" if op == "argmax" else None)


for _op in ("softmax", "layernorm", "rmsnorm", "sum", "mean", "argmax", "transpose_copy"):
    _word(_op)(partial(_rows, op=_op))


@_word("bias_add")
def _bias_add(b: Builder, rows: int, cols: int) -> str:
    return b.op("bias_add", b.input("x", (rows, cols)), b.weight("bias", (cols,)))


@_word("attention_sdpa", "attention")
def _attention(
    b: Builder, batch: int, heads: int, q_len: int, kv_len: int, head_dim: int,
    kv_heads: int | None = None, causal: bool = False, window: int = 0, kv_dtype: str | None = None,
) -> str:  # fmt: skip
    q, k, v = _qkv(b, batch, heads, kv_heads or heads, q_len, kv_len, head_dim, kv_dtype)
    mask: dict[str, Any] = {"causal": causal, "window": window}
    with b.kernel("sdpa"):
        scores = b.op("attention_scores", q, k, name="scores", **mask)
        weights = b.op("attention_softmax", scores, name="softmax", **mask)
        return b.op("attention_values", weights, v, name="values", **mask)


@_word("attention_naive")
def _attention_naive(
    b: Builder, batch: int, heads: int, q_len: int, kv_len: int, head_dim: int,
    kv_heads: int | None = None, causal: bool = False,
) -> str:  # fmt: skip
    q, k, v = _qkv(b, batch, heads, kv_heads or heads, q_len, kv_len, head_dim)
    scores = b.op("mul_scalar", b.op("attention_scores", q, k, name="scores"), name="scale")
    if causal:
        copied = b.op("copy", scores, name="mask_copy")
        scores = b.op("mask", copied, b.input("mask", (q_len, kv_len), dtype="bool"), name="mask_fill")
    return b.op("attention_values", b.op("softmax", scores), v, name="values")


def _qkv(
    b: Builder, batch: int, heads: int, kv_heads: int, q: int, k: int, d: int, kv_dtype: str | None = None
) -> tuple[str, str, str]:
    shape = (batch, kv_heads, k, d)
    stored = number_format(kv_dtype).name if kv_dtype else None
    return b.input("q", (batch, heads, q, d)), b.input("k", shape, dtype=stored), b.input("v", shape, dtype=stored)


@_word("conv2d")
def _conv2d(
    b: Builder, n: int, c_in: int, h: int, w: int, c_out: int, r: int, s: int,
    stride: int = 1, padding: int = 0, groups: int = 1, dilation: int = 1, channels_last: bool = True,
) -> str:  # fmt: skip
    if groups > 1 and c_in % groups:
        raise UsageError(f"groups={groups} does not divide c_in={c_in}")
    x, weight = b.input("x", (n, c_in, h, w)), b.weight("w", (c_out, c_in // groups, r, s))
    options: dict[str, Any] = {"stride": stride, "padding": padding, "groups": groups, "dilation": dilation}
    return b.op("conv2d", x, weight, channels_last=channels_last, **options)


@_word("batchnorm2d")
def _batchnorm2d(b: Builder, n: int, c: int, h: int, w: int) -> str:
    return b.op("batchnorm2d", b.input("x", (n, c, h, w)), *(b.weight("p", (c,), dtype="fp32") for _ in range(4)))


@_word("maxpool2d")
def _maxpool2d(b: Builder, n: int, c: int, h: int, w: int, r: int, stride: int, padding: int = 0) -> str:
    return b.op("maxpool2d", b.input("x", (n, c, h, w)), r=r, stride=stride, padding=padding)


@_word("swiglu")
def _swiglu(b: Builder, rows: int, cols: int) -> str:
    both = b.input("gate_up", (rows, 2 * cols))
    gate, up = (b.op("slice", both, shape=(rows, cols), name=name) for name in ("gate", "up"))
    return b.op("mul", b.op("silu", gate), up)


@_word("rope")
def _rope(b: Builder, batch: int, heads: int, seq: int, head_dim: int) -> str:
    x = b.input("x", (batch, heads, seq, head_dim))
    cos, sin = b.input("cos", (seq, head_dim)), b.input("sin", (seq, head_dim))
    half = (batch, heads, seq, head_dim // 2)
    first, second = (b.op("slice", x, shape=half, name=name) for name in ("x1", "x2"))
    turned = b.op("cat", b.op("neg", second), first, axis=-1)
    return b.op("add", b.op("mul", x, cos, name="x_cos"), b.op("mul", turned, sin, name="x_sin"))


@_word("gather")
def _gather(b: Builder, table: int, n: int) -> str:
    return b.op("gather", b.input("table", (table,)), b.input("index", (n,), dtype="int64"))


@_word("cat")
def _cat(b: Builder, rows: int, cols_a: int, cols_b: int) -> str:
    return b.op("cat", b.input("a", (rows, cols_a)), b.input("b", (rows, cols_b)), axis=-1)


@_word("embedding")
def _embedding(b: Builder, vocab: int, dim: int, tokens: int) -> str:
    return b.op("embedding", b.weight("table", (vocab, dim)), b.input("index", (tokens,), dtype="int64"))


def _collective(
    b: Builder, devices: int, elements: int | None = None, bytes: int | None = None,
    bytes_in: int | None = None, bytes_out: int | None = None, *, op: str,
) -> str:  # fmt: skip
    """``elements`` of the dtype, or ``bytes``: the larger side, which all-gather returns and the others are given.

    ``bytes_in`` is what each device gives and ``bytes_out`` what it gets.
    """
    sizes = {"elements": elements, "bytes": bytes, "bytes_in": bytes_in, "bytes_out": bytes_out}
    chosen = [(key, size) for key, size in sizes.items() if size is not None]
    if len(chosen) != 1:
        raise UsageError(f"{op} needs one of {', '.join(sizes)}")
    ((key, size),) = chosen
    if (op, key) in (("all_gather", "bytes_in"), ("reduce_scatter", "bytes_out")):
        size = size * devices
    own = ceil_div(size, devices) if op == "all_gather" else size
    dtype = b.dtype if key == "elements" else "int8"
    return b.op(op, b.input("x", (own,), dtype=dtype), dtype=dtype, devices=devices)


for _op in COLLECTIVES:
    _word(_op)(partial(_collective, op=_op))


def _memcpy(b: Builder, bytes: int, pinned: bool = True, *, op: str) -> str:
    return b.op(op, b.input("x", (bytes,), dtype="int8"), dtype="int8", pinned=pinned)


for _op in ("memcpy_h2d", "memcpy_d2h"):
    _word(_op)(partial(_memcpy, op=_op))


@_word("moe")
def _moe(
    b: Builder, tokens: int, hidden: int, intermediate: int, top_k: int, experts: int,
    tp: int = 1, ep: int = 1, distribution: str = "uniform", gated: bool = True,
) -> str:  # fmt: skip
    """``tokens`` are those of all ``ep`` ranks; the rank that gets most is timed. ``tp`` splits the intermediate size.

    Activations have 16 bits at least; ``dtype`` is the experts': fp8 and fp4 also multiply in it, int4 weights multiply
    in bf16.
    """
    routing_exponent(distribution)
    stored = "int4-g128-sym" if b.dtype == "int4" else b.dtype
    x = b.input("x", (tokens, hidden), dtype=b.dtype if DTYPES[b.dtype].bits >= 16 else "bf16")
    own, wide = ceil_div(experts, ep), ceil_div(intermediate, tp)
    up = b.weight("up", (own, 2 * wide if gated else wide, hidden), dtype=stored)
    down = b.weight("down", (own, hidden, wide), dtype=stored)
    compute = DTYPES[stored].compute or "bf16"
    dtype = b.tensor(x).dtype
    return b.op("moe", x, up, down, dtype=dtype, top_k=top_k, ranks=ep, distribution=distribution, compute=compute)


_MODEL_KEYS = ("model", "phase", "batch", "seq", "context", "dtype", "count")


def workload(entries: Sequence[Mapping[str, Any]], dtype: str = "bf16", name: str = "workload") -> Graph:
    """Make one graph of a list of operators and models with sizes.

    Args:
        entries: Each ``{"op": word, ...sizes}`` or ``{"model": name, "phase": ..., "batch": ..., "seq": ...}``, with
            optional ``dtype`` and ``count``. An ``elementwise`` entry with a count is a chain; any other entry with
            a count runs that often on other data.
        dtype: Number format of entries that name none.
        name: What the graph is called.

    Returns:
        One graph of all entries, in order.

    Raises:
        ModelDataError: An entry that is not one: names its place, the key, what is allowed.
        ShapeError: Sizes that contradict each other.

    Example:
        >>> import roofline as rl
        >>> rl.count(rl.workload([{"op": "gemm", "m": 512, "n": 512, "k": 512}])).flops
        268435456
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise ModelDataError(f"{name}: a workload is a list of at least one entry")
    parts = [_entry(entry, dtype, f"{name}[{at}]") for at, entry in enumerate(entries)]
    joined = _join(name, parts)
    if any(part.info for part in parts):
        return joined
    return joined.with_info(listed=True)


def is_listed(graph: Graph) -> bool:
    """Tell whether a program only lists what is computed, so that neighbours of a chain may run as one kernel.

    Example:
        >>> import roofline as rl
        >>> is_listed(rl.workload([{"op": "gelu", "n": 1024}])), is_listed(rl.model("gpt2"))
        (True, False)
    """
    return graph.info.listed


def load_workload(path: str | Path, dtype: str | None = None) -> Graph:
    """Read a workload ``.json``: a list of entries, or ``{"dtype": ..., "work": [...]}``.

    Args:
        path: The file.
        dtype: Number format of entries that name none, instead of the file's (``bf16`` when it has none).

    Raises:
        ModelDataError: Not readable, not JSON (names line and column), or not a workload.
        UsageError: A dtype where each entry names its own.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "mine.json")
        ...     _ = file.write_text('[{"op": "relu", "n": 1024}]')
        ...     load_workload(file)
        <Graph mine: 1 nodes, 0 parameters>
    """
    file = user_path(path, ModelDataError)
    data = read_json(file, MAX_BYTES)
    if isinstance(data, Mapping) and "work" in data:
        _known_keys(data, ("dtype", "work"), f"{file}: ")
    inner = data.get("dtype", "bf16") if isinstance(data, Mapping) else "bf16"
    entries: Any = data.get("work") if isinstance(data, Mapping) and "work" in data else data
    entries = [entries] if isinstance(entries, Mapping) else entries
    graph = workload(entries, dtype or inner, file.stem)
    if dtype is not None and all(entry.get("dtype") is not None for entry in entries):
        raise UsageError(f"{file}: dtype={dtype!r} (--dtype) is for entries that name none, and each names its own")
    return graph


def _entry(entry: Any, dtype: str, where: str) -> Graph:
    if not isinstance(entry, Mapping) or ("op" in entry) == ("model" in entry):
        raise ModelDataError(f"{where}: an entry is a table with either 'op' or 'model', not {str(entry)[:60]}")
    try:
        return _model_entry(entry, dtype) if "model" in entry else _op_entry(entry, dtype)
    except RooflineError as error:
        raise type(error)(f"{where}: {error}") from None


def _model_entry(entry: Mapping[str, Any], dtype: str) -> Graph:
    _known_keys(entry, _MODEL_KEYS)
    graph = model(str(entry["model"]), phase=entry.get("phase"), dtype=entry.get("dtype", dtype))
    symbols = {"B": entry.get("batch", 1), "S": entry.get("seq"), "C": entry.get("context", entry.get("seq"))}
    sizes = {key: _whole(key, value) for key, value in symbols.items() if key in graph.symbols and value is not None}
    missing = sorted(graph.symbols - sizes.keys())
    if missing:
        raise UsageError(f"{graph.name} needs {' and '.join({'S': 'seq', 'C': 'context'}.get(m, m) for m in missing)}")
    return _repeated(graph.bind(**sizes), _whole("count", entry.get("count", 1)))


#: Sizes that may be nothing.
FROM_ZERO = frozenset({"padding", "window"})
#: Keys that choose among kernels rather than scale them; rows that share them share a graph.
CONCRETE = frozenset(
    {"groups", "stride", "padding", "dilation", "r", "s", "window", "count", "inputs", "kv_dtype", "devices",
     "distribution"}
)  # fmt: skip


def _op_entry(entry: Mapping[str, Any], dtype: str) -> Graph:
    word = str(entry["op"])
    shape = {key: value for key, value in entry.items() if key not in ("op", "dtype")}
    repeats = 1
    if word in WORDS and "count" not in _keys(word):
        count = shape.pop("count", None)
        repeats = 1 if count is None else _whole("count", count)
    graph = operator_graph(word, str(entry.get("dtype", dtype)), checked_entry(word, shape))
    return _repeated(graph, repeats)


@cache
def _keys(word: str) -> dict[str, inspect.Parameter]:
    """Return the size keys of a word."""
    return {
        key.rstrip("_"): parameter  # bmm's batch is b, as is the builder
        for key, parameter in inspect.signature(WORDS[word]).parameters.items()
        if key != "b" and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }


def checked_entry(word: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Check the keys and sizes of an operator entry, without its dtype.

    Raises:
        ModelDataError: An unknown word or key, or a missing one.
        UsageError: A size that is not a whole number in range.
    """
    if word not in WORDS:
        raise ModelDataError(f"unknown op {word!r}" + (did_you_mean(word, WORDS) or f"; allowed: {', '.join(WORDS)}"))
    parameters = _keys(word)
    values = {key: value for key, value in shape.items() if value is not None}
    _known_keys(values, [*parameters, *({"count", "dtype"} - parameters.keys())])
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in values]
    if missing:
        raise ModelDataError(f"{word} needs {', '.join(missing)}")
    sizes = {key: _value(key, value, parameters[key]) for key, value in values.items()}
    if sizes.get("heads", 1) % sizes.get("kv_heads", 1):
        raise ShapeError(
            f"{word} has {sizes['heads']} query heads, which is not a multiple of {sizes['kv_heads']} key-value heads"
        )
    if sizes.get("top_k", 0) > sizes.get("experts", MAX_SIZE):
        raise ShapeError(f"{word} chooses {sizes['top_k']} of {sizes['experts']} experts")
    return sizes


def operator_graph(word: str, dtype: str, shape: Mapping[str, Any]) -> Graph:
    """Return the graph of one operator, from checked sizes or symbols.

    Raises:
        ShapeError: The sizes contradict each other.
    """
    b = Builder(word, number_format(dtype).name)
    build = WORDS[word]
    result = build(b, **{_keys(word)[key].name: value for key, value in shape.items()})
    return b.graph([result])


def _known_keys(keys: Iterable[Any], allowed: Sequence[str], where: str = "") -> None:
    for key in keys:
        if key not in allowed:
            near = did_you_mean(str(key), allowed)
            raise ModelDataError(f"{where}unknown key {key!r}; allowed: {', '.join(allowed)}{near}")


def _value(key: str, value: Any, parameter: inspect.Parameter) -> Any:
    if parameter.annotation == "bool":
        if value not in (True, False):
            raise UsageError(f"{key}={value!r}: expected true or false")
        return bool(value)
    if key == "kv_dtype":
        return number_format(value).name
    if parameter.annotation == "str":
        return str(value)
    return _whole(key, value, least=0 if key in FROM_ZERO else 1)


def _whole(key: str, value: Any, least: int = 1) -> int:
    value = python_number(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= MAX_SIZE or value != int(value):
        raise UsageError(f"{key}={value!r}: expected a whole number from {least} to 10**12")
    return int(value)


def _repeated(graph: Graph, count: int) -> Graph:
    if count == 1:
        return graph
    nodes = tuple(replace(node, count=node.count * count) for node in graph.nodes)
    return replace(graph, nodes=nodes, items=graph.items * count)


def _join(name: str, parts: Sequence[Graph]) -> Graph:
    """Put graphs after each other under prefixes; a single one keeps its names."""
    if len(parts) == 1:
        return replace(parts[0], name=parts[0].name if parts[0].info else name)
    renamed = [prefixed(part, f"{at}.{part.name}") for at, part in enumerate(parts)]
    return Graph(
        name,
        {key: tensor for part in renamed for key, tensor in part.tensors.items()},
        tuple(node for part in renamed for node in part.nodes),
        tuple(key for part in renamed for key in part.outputs),
    ).validate()
