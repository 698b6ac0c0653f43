"""``quantization_config``: in which format a checkpoint stores which matrices, scales and zero points included.

Embeddings, norms, routers and the head keep theirs, unless a scheme says otherwise; so do the modules that a scheme
leaves out, by name or pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roofline.ir.graph import Graph, Node, Tensor
from roofline.ops.registry import OPS
from roofline.passes.formats.cast import cast
from roofline.programs.huggingface.keys import Keys
from roofline.programs.huggingface.modules import Pattern, modules, patterns

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Scheme:
    """One format and the matrices that are stored in it."""

    bits: int  #: Stored bits of an element.
    stored: str = "int"  #: ``int``, ``float`` or a word for a 4-bit table (``nf4``).
    group: int = 0  #: Elements of a row that share a scale, 0 for the whole row, -1 for the whole matrix.
    zero: int = 0  #: Bits of a zero point.
    scale: int = 16  #: Bits of a scale.
    compute: str = ""  #: What matmuls run in, where activations are quantised as well.
    only: tuple[str, ...] = ()  #: Words of the modules that are stored so, empty for all matrices of the layers.
    named: str = ""  #: The format, where it has a name of its own.
    #: Whether each matrix is stored with a 32-bit index of its groups per column (GPTQ's ``g_idx``).
    index: bool = False

    def format_of(self, row: int) -> str:
        """Return the number format of a matrix with rows of some length."""
        base = (
            self.stored if self.stored in ("nf4", "fp4") else f"{'fp' if self.stored == 'float' else 'int'}{self.bits}"
        )
        if self.named or self.group < 0:
            return self.named or base
        suffix = f"-s{self.scale}" if self.scale != 16 else ""
        return f"{base}-g{self.group or row}-{f'z{self.zero}' if self.zero else 'sym'}{suffix}"


# --- one function a method: a table in, schemes and left-out modules out ---------------------------------------------


def _int(value: Any, least: int = 0, most: int = 2**20) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and (least <= value <= most or value == -1) else 0


def _refuse(c: Keys, table: Table, bits: int = 0, group: int = 0) -> None:
    method = str(table.get("quant_method"))[:40]
    said = f"{method} with {bits} bits in groups of {group}"
    c.fail("quantization_config", f"{said} is not understood; allowed: {', '.join(QUANTISED)}")


def _gptq(c: Keys, table: Table) -> list[Scheme]:
    """GPTQ and AWQ store a zero point for each group whether it is used or not."""
    bits = _int(table.get("bits", table.get("w_bit")))
    group = _int(table.get("group_size", table.get("q_group_size", -1)))
    if bits not in (2, 3, 4, 8) or not group:
        _refuse(c, table, bits, group)
    # -1 stands for whole rows; AutoGPTQ and GPTQModel write g_idx whether columns are reordered or not
    # (https://github.com/AutoGPTQ/AutoGPTQ/blob/main/auto_gptq/nn_modules/qlinear/qlinear_cuda.py, register_buffer)
    scheme = Scheme(bits, group=max(group, 0), zero=bits, index=table.get("quant_method") == "gptq")
    return [scheme, *([replace(scheme, only=("lm_head",))] if table.get("lm_head") is True else [])]


def _bitsandbytes(c: Keys, table: Table) -> list[Scheme]:
    """LLM.int8 has a 32-bit scale per row; 4 bits a scale per block of 64, itself quantised or not."""
    if table.get("load_in_8bit") is True:
        return [Scheme(8, scale=32, compute="int8")]
    kind = table.get("bnb_4bit_quant_type", "fp4")
    if table.get("load_in_4bit") is not True or kind not in ("nf4", "fp4"):
        c.fail("quantization_config", "bitsandbytes needs load_in_8bit, or load_in_4bit with nf4 or fp4")
    if table.get("bnb_4bit_use_double_quant") is True:
        return [Scheme(4, kind, named="nf4-dq")]
    return [Scheme(4, kind, group=64, scale=32)]


def _fp8(c: Keys, table: Table) -> list[Scheme]:
    """A 32-bit scale per block of the matrix, or one for all of it."""
    block = table.get("weight_block_size")
    if block is None:
        return [Scheme(8, "float", group=-1, compute="fp8")]
    if not isinstance(block, list | tuple) or len(block) != 2 or not all(_int(size, 1, 4096) > 0 for size in block):
        c.fail("quantization_config", f"weight_block_size: expected two sizes, given {str(block)[:60]!r}")
    named = "fp8-block" if tuple(block) == (128, 128) else f"fp8-g{block[0] * block[1]}-sym-s32"
    return [Scheme(8, "float", named=named, compute="fp8")]


def _modelopt(c: Keys, table: Table) -> list[Scheme]:
    known = {"FP8": Scheme(8, "float", group=-1, compute="fp8"), "NVFP4": Scheme(4, named="nvfp4", compute="fp4")}
    scheme = known.get(str(table.get("quant_algo")))
    if scheme is None:
        c.fail("quantization_config", f"quant_algo: {str(table.get('quant_algo'))[:60]!r}; allowed: {', '.join(known)}")
    return [scheme]


def _compressed(c: Keys, table: Table) -> list[Scheme]:
    """compressed-tensors: groups of modules, each with a format of weights and perhaps of activations."""
    groups = table.get("config_groups")
    schemes = [_compressed_group(c, table, group) for group in groups.values()] if isinstance(groups, Mapping) else []
    if not schemes:
        _refuse(c, table)
    return schemes


def _compressed_group(c: Keys, table: Table, group: Any) -> Scheme:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        _refuse(c, table)
    assert isinstance(weights, Mapping)
    bits, kind = _int(weights.get("num_bits")), str(weights.get("type", "int"))[:20]
    if (bits, kind) not in {*((b, "int") for b in (2, 3, 4, 8)), (8, "float"), (4, "float")}:
        _refuse(c, table, bits, _int(weights.get("group_size")))
    targets = _names(c, group, "targets") or ["Linear"]
    only = () if "Linear" in targets else tuple(target[:200] for target in targets)
    zero = 0 if weights.get("symmetric") is not False or kind == "float" else bits
    base = Scheme(bits, kind, zero=zero, only=only, compute=_compute(group.get("input_activations")),
                  index=str(weights.get("actorder")) in ("group", "dynamic"))  # fmt: skip
    return _with_strategy(c, table, base, weights)


def _with_strategy(c: Keys, table: Table, base: Scheme, weights: Table) -> Scheme:
    size = _int(weights.get("group_size"))
    strategy = str(weights.get("strategy") or "") or ("group" if size > 0 else "channel" if size == -1 else "tensor")
    if base.bits == 4 and base.stored == "float":
        return replace(base, named="nvfp4" if size == 16 else "mxfp4")
    if strategy == "block":
        return replace(_fp8(c, {"weight_block_size": weights.get("block_structure")})[0], only=base.only)
    if strategy == "group" and size > 0:
        return replace(base, group=size)
    if strategy not in ("channel", "tensor"):
        _refuse(c, table, base.bits, size)
    return replace(base, group=0 if strategy == "channel" else -1)


def _compute(activations: Any) -> str:
    if not isinstance(activations, Mapping):
        return ""
    kind, bits = activations.get("type", "int"), activations.get("num_bits")
    return {"int 8": "int8", "float 8": "fp8", "float 4": "fp4"}.get(f"{kind} {bits}", "")


#: How each method is read.
QUANTISED: dict[str, Callable[[Keys, Table], list[Scheme]]] = {
    "gptq": _gptq, "awq": _gptq, "auto-round": _gptq, "bitsandbytes": _bitsandbytes, "compressed-tensors": _compressed,
    "fp8": _fp8, "modelopt": _modelopt,
    "fbgemm_fp8": lambda c, table: [Scheme(8, "float", scale=32, compute="fp8")],
    # gpt-oss: the experts alone, multiplied in 16 bits.
    "mxfp4": lambda c, table: [Scheme(4, "float", named="mxfp4", only=("experts",))],
}  # fmt: skip

#: Keys by which formats differ between modules, or matrices are stored in another way again.
_CHANGING = ("dynamic", "extra_config", "transform_config", "sparsity_config", "layer_bits", "quantized_layers")

#: What else a table may hold that neither bytes nor arithmetic follow from: how it was made, and where it may run.
_SILENT = re.compile(
    r"^_|^(quant_(method|algo)|bits|w_bit|group_size|q_group_size|weight_block_size|config_groups|format|fmt|scale_fmt|"
    r"sym|desc_act|static_groups|true_sequential|zero_point|version|backend|meta|producer|dataset|tokenizer|model_\w+|"
    r"damp\w*|block_name\w*|module_name\w*|\w*exllama\w*|\w*fuse\w*|cache_block_outputs|use_\w+|batch_size|pad_token_id|"
    r"max_input_length|checkpoint_format|is_marlin_format|pack_dtype|packing_format|lm_head|quantization_status|"
    r"global_compression_ratio|run_compressed|ignore|activation_s\w+|dequantize|load_in_\dbit|bnb_4bit_\w+|llm_int8_\w+|"
    r"autoround_version|iters|lr|minmax_lr|nsamples|seqlen|amp|low_\w+|enable_\w+|data_type|scale_dtype|gradient_\w+|"
    r"modules_(to_not_convert|in_block_to_quantize)|ignored_layers|exclude_modules|kv_cache_\w+|to_quant_block_names|"
    r"linear_class|quantization_mode|online_quantization|include_\w+)$"
)

#: Formats of the cache that a checkpoint may come with scales for.
_CACHES = {"FP8": "fp8", "float 8": "fp8", "int 8": "int8", "NVFP4": "nvfp4"}

#: Where methods name the modules that they leave out.
_IGNORED = ("ignore", "modules_to_not_convert", "llm_int8_skip_modules", "ignored_layers", "exclude_modules")


def quantise(graph: Graph, c: Keys, table: Table) -> Graph:
    """Give the matrices of a graph the formats that the checkpoint stores them in.

    Raises:
        ModelDataError: A scheme that is not understood, or a left-out module that the graph cannot leave out.
    """
    if not table:
        return graph
    method = str(
        table.get("quant_method") or ("bitsandbytes" if {"load_in_8bit", "load_in_4bit"} & set(table) else None)
    )
    if method not in QUANTISED:
        _refuse(c, table, _int(table.get("bits")), _int(table.get("group_size")))
    _check_rest(c, table)
    schemes = QUANTISED[method](c, table)
    out = patterns(c, [entry for key in _IGNORED for entry in _names(c, table, key)])
    formats = _formats(graph, c, schemes, out)
    last = graph.info.layers

    def beyond(pattern: Pattern) -> bool:
        """Tell whether it names a layer after the last, where checkpoints keep modules that predict further tokens."""
        return pattern.layer.isdecimal() and last is not None and int(pattern.layer) >= last

    for pattern in out:
        if not pattern.used and not pattern.harmless and not beyond(pattern):
            c.fail("quantization_config", f"the left-out module {pattern.text!r} is not understood")
    said = sorted({stored for stored, *_ in formats.values()})
    c.notes.append(f"{method}: {len(formats)} matrices stored in {', '.join(said[:4])}")
    stored = _stored(graph, formats)
    cache = _cache(c, table)
    return cast(stored, cache=cache) if cache and any(t.kind == "cache" for t in graph.tensors.values()) else stored


def _check_rest(c: Keys, table: Table) -> None:
    """Refuse keys that change formats, and note those that are not known."""
    for key in _CHANGING:
        value = table.get(key)
        plain = isinstance(value, Mapping) and value.get("format") == "dense"
        if value and not plain:
            c.fail("quantization_config", f"{key}: formats that differ by module are not understood yet")
    strange = [str(key)[:60] for key in table if key not in _CHANGING and not _SILENT.match(str(key))]
    if strange:
        c.notes.append(f"quantization_config: not understood, and counted as without a cost: {', '.join(strange[:12])}")


def _cache(c: Keys, table: Table) -> str:
    """Return the format that the checkpoint has scales of the cache for, empty where it has none."""
    scheme, named = table.get("kv_cache_scheme"), table.get("kv_cache_quant_algo")
    if isinstance(scheme, Mapping) and scheme:
        named = f"{scheme.get('type', 'int')} {scheme.get('num_bits')}"
    if not named:
        return ""
    named = str(named)[:40]
    if named not in _CACHES:
        c.fail("quantization_config", f"a cache in {named!r} is not understood; allowed: {', '.join(_CACHES)}")
    c.notes.append(f"quantization_config: the KV cache is kept in {_CACHES[named]}")
    return _CACHES[named]


def _names(c: Keys, table: Table, key: str) -> list[str]:
    names = table.get(key) or []
    if not isinstance(names, list | tuple) or len(names) > 20_000 or not all(isinstance(name, str) for name in names):
        c.fail("quantization_config", f"{key}: expected a list of names, given {str(names)[:60]!r}")
    return list(names)


def _formats(graph: Graph, c: Keys, schemes: list[Scheme], out: list[Pattern]) -> dict[str, tuple[str, str, bool]]:
    """Return for each quantised matrix its format, what its matmuls run in, and whether its columns have an index."""
    chosen = [(scheme, patterns(c, list(scheme.only))) for scheme in schemes]
    formats: dict[str, tuple[str, str, bool]] = {}
    for name, row in _matrices(graph).items():
        parts = modules(name)
        left_out = _covers(c, out, parts)
        for scheme, only in chosen:
            inside = _covers(c, only, parts) if only else "lm_head" not in parts[0]
            if inside and not left_out:
                formats.setdefault(name, (scheme.format_of(row), scheme.compute, scheme.index))
    return formats


def _covers(c: Keys, entries: list[Pattern], parts: list[tuple[str, ...]]) -> bool:
    """Tell whether patterns name a matrix; one that is stored as several must be named as a whole."""
    hits = [[entry for entry in entries if entry.names(part)] for part in parts]
    if any(hits) and not all(hits):
        text = next(named[0].text for named in hits if named)
        c.fail(
            "quantization_config", f"{text!r} names a part of a projection that runs as one: {parts[0][0]} and others"
        )
    for entry in (entry for named in hits for entry in named):
        entry.used = True
    return bool(hits) and all(hits)


def _matrices(graph: Graph) -> dict[str, int]:
    """Return the matrices of linear layers, routers apart, and the length of their rows."""
    rows: dict[str, int] = {}
    for node in graph.nodes:
        at = {"linear": 1, "expert_linear": 1, "slice": 0}.get(node.op)
        name = node.inputs[at] if at is not None else ""
        tensor = graph.tensors.get(name)
        if (
            tensor is not None
            and tensor.kind == "weight"
            and len(tensor.shape) > 1
            and (name == "head.weight" or ("layers." in name and not name.endswith(("router.weight", "conv.weight"))))
        ):
            rows[name] = int(tensor.shape[-1])  # type: ignore[arg-type]
    return rows


def _stored(graph: Graph, formats: Mapping[str, tuple[str, str, bool]]) -> Graph:
    """Change the stored formats, of views of them too, and the arithmetic of what multiplies by them."""
    changed = {name: stored for name, (stored, *_) in formats.items()}
    runs = {name: compute for name, (_, compute, _) in formats.items() if compute}
    indexes = [_index(graph.tensors[name]) for name, (*_, index) in formats.items() if index]
    nodes: list[Node] = []
    for node in graph.nodes:
        alias = OPS[node.op].alias
        if alias is not None and node.inputs[alias] in changed:
            changed.update(dict.fromkeys(node.outputs, changed[node.inputs[alias]]))
        compute = runs.get(node.inputs[1]) if node.op in ("linear", "expert_linear") else None
        attrs = tuple(sorted({**dict(node.attrs), "compute": compute}.items())) if compute else node.attrs
        nodes.append(replace(node, attrs=attrs))
    tensors: list[Tensor] = [replace(graph.tensors[name], dtype=stored) for name, stored in changed.items()]
    return replace(graph.with_tensors([*tensors, *indexes]), nodes=tuple(nodes))


def _index(weight: Tensor) -> Tensor:
    """Return the groups of the columns, for each of the matrices that a checkpoint stores a weight as."""
    *experts, _, columns = weight.shape
    shape = (*experts, len(modules(weight.name)), columns)
    return Tensor(weight.name.removesuffix("weight") + "g_idx", shape, "int32", "buffer")
