"""``quantization_config``: in which format a checkpoint stores which matrices, scales and zero points included.

Embeddings, norms, routers and the head keep theirs, unless a scheme says otherwise; so do the modules that a scheme
leaves out, by name or pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roofline.ir.graph import Graph, Node, Tensor
from roofline.ops.registry import OPS
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
    if table.get("dynamic"):
        c.fail("quantization_config", "dynamic: formats that differ by module are not understood yet")
    group = _int(table.get("group_size", table.get("q_group_size", -1)))
    if bits not in (2, 3, 4, 8) or not group:
        _refuse(c, table, bits, group)
    scheme = Scheme(bits, group=max(group, 0), zero=bits)  # -1 stands for whole rows
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
        c.fail("quantization_config", f"weight_block_size: wanted two sizes, given {str(block)[:60]!r}")
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
    bits, kind = _int(weights.get("num_bits")), weights.get("type", "int")
    if (bits, kind) not in {*((b, "int") for b in (2, 3, 4, 8)), (8, "float"), (4, "float")}:
        _refuse(c, table, bits, _int(weights.get("group_size")))
    targets = group.get("targets") or ["Linear"]
    only = () if "Linear" in targets else tuple(str(target)[:200] for target in targets)
    zero = 0 if weights.get("symmetric") is not False or kind == "float" else bits
    base = Scheme(bits, kind, zero=zero, only=only, compute=_compute(group.get("input_activations")))
    return _with_strategy(c, table, base, weights)


def _with_strategy(c: Keys, table: Table, base: Scheme, weights: Table) -> Scheme:
    size = _int(weights.get("group_size"))
    strategy = weights.get("strategy") or ("group" if size > 0 else "channel" if size == -1 else "tensor")
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
    said = sorted({stored for stored, _ in formats.values()})
    c.notes.append(f"{method}: {len(formats)} matrices stored in {', '.join(said[:4])}")
    return _stored(graph, formats)


def _names(c: Keys, table: Table, key: str) -> list[str]:
    names = table.get(key) or []
    if not isinstance(names, list | tuple) or len(names) > 20_000 or not all(isinstance(name, str) for name in names):
        c.fail("quantization_config", f"{key}: wanted a list of names, given {str(names)[:60]!r}")
    return list(names)


def _formats(graph: Graph, c: Keys, schemes: list[Scheme], out: list[Pattern]) -> dict[str, tuple[str, str]]:
    """Return for each quantised matrix its format and what its matmuls run in."""
    chosen = [(scheme, patterns(c, list(scheme.only))) for scheme in schemes]
    formats: dict[str, tuple[str, str]] = {}
    for name, row in _matrices(graph).items():
        parts = modules(name)
        left_out = _covers(c, out, parts)
        for scheme, only in chosen:
            inside = _covers(c, only, parts) if only else "lm_head" not in parts[0]
            if inside and not left_out:
                formats.setdefault(name, (scheme.format_of(row), scheme.compute))
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


def _stored(graph: Graph, formats: Mapping[str, tuple[str, str]]) -> Graph:
    """Change the stored formats, of views of them too, and the arithmetic of what multiplies by them."""
    changed = {name: stored for name, (stored, _) in formats.items()}
    runs = {name: compute for name, (_, compute) in formats.items() if compute}
    nodes: list[Node] = []
    for node in graph.nodes:
        alias = OPS[node.op].alias
        if alias is not None and node.inputs[alias] in changed:
            changed.update(dict.fromkeys(node.outputs, changed[node.inputs[alias]]))
        compute = runs.get(node.inputs[1]) if node.op in ("linear", "expert_linear") else None
        attrs = tuple(sorted({**dict(node.attrs), "compute": compute}.items())) if compute else node.attrs
        nodes.append(replace(node, attrs=attrs))
    tensors: list[Tensor] = [replace(graph.tensors[name], dtype=stored) for name, stored in changed.items()]
    return replace(graph.with_tensors(tensors), nodes=tuple(nodes))
