"""A config to a graph: where it is from, its parts, what its ``architectures`` ask for, how it is built."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roofline.ir.datafile import read_json
from roofline.ir.errors import ModelDataError, UsageError, did_you_mean
from roofline.ir.files import user_path
from roofline.ir.graph import Graph
from roofline.programs.huggingface.checkpoints import blocks
from roofline.programs.huggingface.composites import COMPOSITES, OUTER, VISION_TYPES, Composite
from roofline.programs.huggingface.decoders import CAUSAL, DECODERS
from roofline.programs.huggingface.encoders import ENCODERS
from roofline.programs.huggingface.hybrids import HYBRIDS
from roofline.programs.huggingface.keys import DEFAULTS, MAX_SIZE, Keys, Kind
from roofline.programs.huggingface.quantised import quantise
from roofline.programs.huggingface.seq2seqs import SEQ2SEQS
from roofline.programs.huggingface.vision import VISION
from roofline.programs.joining import beside
from roofline.programs.modelfile import build_model, check_model_file

#: Models of one tower, and towers.
KINDS: dict[str, Kind] = {**DECODERS, **HYBRIDS, **ENCODERS, **blocks.ENCODERS, **SEQ2SEQS, **VISION}

#: All of them, models of several towers among them.
KNOWN = (*KINDS, *COMPOSITES)

#: Where configs of several towers keep the language model.
NESTED = ("text_config", "llm_config", "language_config")

#: What they hold beside it.
TOWERS = ("vision_config", "audio_config")
#: Names of model types that an error lists.
_SHOWN = 12
#: Keys by which configs name their number format, now and before.
_DTYPES = ("dtype", "torch_dtype")
#: What an absent key of these means is worth saying.
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
#: What may be asked for.
_PARTS = ("text", "vision", "all")


def read_source(source: object) -> tuple[Mapping[str, Any], str, str]:
    """Return the config's contents, where they are from, and what to call the model.

    A loaded model or a config object is asked for its dictionary; neither transformers nor torch is imported.
    """
    if isinstance(source, Mapping):
        return _typed(source), "config", _name(source)
    if isinstance(source, str | os.PathLike):
        return _read_path(user_path(source, ModelDataError))
    config = getattr(source, "config", source)
    to_dict = getattr(config, "to_dict", None)
    table = to_dict() if callable(to_dict) and not isinstance(source, type) else None
    if not isinstance(table, Mapping):
        raise ModelDataError(
            f"config: expected a file, a folder, a table of keys, a config or a model, given {type(source).__name__}"
        )
    if config is not source and not table.get("architectures"):
        table = {**table, "architectures": [type(source).__name__]}
    return table, "config", _name(table)


def _name(table: Mapping[str, Any]) -> str:
    return str(table.get("_name_or_path") or table.get("model_type") or "config")[:200]


def _read_path(path: Path) -> tuple[Mapping[str, Any], str, str]:
    folder = os.path.isdir(path)
    file = path / "config.json" if folder else path
    if folder and not file.exists():
        raise ModelDataError(f"{path}: a directory without config.json")
    table = read_json(file)
    if not isinstance(table, Mapping):
        raise ModelDataError(f"{file}: expected a table of keys, given {str(table)[:60]}")
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return _typed(table), str(file), name[:200] or "config"


def _typed(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give a config without a ``model_type`` that of its class, as files beside a class of their own have it."""
    named = table.get("architectures")
    if table.get("model_type") is not None or not isinstance(named, list | tuple) or not named:
        return table
    stem = next((str(named[0]).removesuffix(end) for end in CAUSAL if str(named[0]).endswith(end)), "")
    known = [name for name in KINDS if name.replace("_", "").replace("-", "").lower() == stem.lower()]
    return {**table, "model_type": known[0]} if len(known) == 1 else table


def find_kind(table: Mapping[str, Any], where: str) -> Kind:
    """Return the row of a ``model_type``.

    Raises:
        ModelDataError: There is none; names the nearest.
    """
    model_type = table.get("model_type")
    if not isinstance(model_type, str):
        raise ModelDataError(f"{where}: model_type: missing; allowed: {_some_known()}")
    if model_type not in KINDS:
        near = did_you_mean(model_type, [name for name in KNOWN if name != model_type])
        said = " ".join(model_type[:60].split())
        raise ModelDataError(f"{where}: model_type: {said!r} is not understood; allowed: {_some_known()}{near}")
    return KINDS[model_type]


def _some_known() -> str:
    """Return the first names of many; the nearest one says more than all of them."""
    return f"{', '.join(list(KNOWN)[:_SHOWN])} and {len(KNOWN) - _SHOWN} more (docs/import-huggingface.md)"


def keys_of(table: Mapping[str, Any], where: str, outer: Mapping[str, Any] | None = None) -> Keys:
    """Return a table ready to be read, with the defaults of its class and those that an outer config gives."""
    kind = find_kind(table, where)
    return Keys(where, table, {**DEFAULTS.get(table["model_type"], {}), **kind.defaults, **(outer or {})}, kind)


def head_options(table: Mapping[str, Any], kind: Kind, where: str) -> Mapping[str, Any]:
    """Return the options that the first entry of ``architectures`` asks for.

    Raises:
        ModelDataError: A head that the kind does not have.
    """
    heads = kind.ends or CAUSAL
    named = table.get("architectures") or []
    chosen = next(iter(heads.values())) or {}
    for place, name in enumerate(named if isinstance(named, list | tuple) else [named]):
        end = next((end for end in sorted(heads, key=len, reverse=True) if str(name).endswith(end)), None)
        options = heads[end] if end is not None else None
        if options is None:
            allowed = ", ".join(f"...{end}" for end, known in heads.items() if known is not None)
            raise ModelDataError(f"{where}: architectures: {str(name)[:60]!r} is not understood; allowed: {allowed}")
        chosen = options if place == 0 else chosen
    return chosen


@dataclass(frozen=True)
class Parts:
    """The parts of a config."""

    text: Keys  #: The language model, or the only model.
    outer: Mapping[str, Any]  #: The config that holds it, or itself.
    composite: Composite | None  #: How several towers are joined, where that is understood.
    vision: Mapping[str, Any] | None  #: The table of the vision tower, where there is one.
    towers: tuple[str, ...]  #: Keys of what there is beside the language model.


def parts_of(table: Mapping[str, Any], where: str) -> Parts:
    """Find the parts: a nested config that declares layers is the language model, whatever the top level says."""
    composite = COMPOSITES.get(str(table.get("model_type")))
    for key in NESTED:
        if not isinstance(table.get(key), Mapping | None):
            raise ModelDataError(f"{where}: {key}: expected a table of keys, given {str(table[key])[:60]!r}")
    nested: tuple[Any, ...] = tuple(table.get(key) for key in NESTED)
    models = (
        config for config in nested
        if isinstance(config, Mapping)
        and (composite is not None or "num_hidden_layers" in config or str(config.get("model_type")) in KINDS)
    )  # fmt: skip
    inner: Mapping[str, Any] = next(models, table)
    if composite is not None and ("model_type" not in inner or inner is table):
        inner = {**inner, "model_type": composite.text}
    if inner is not table and table.get("tie_word_embeddings") is not None:
        inner = {**inner, "tie_word_embeddings": table["tie_word_embeddings"]}  # the head belongs to the whole model
    shared = {"tie_word_embeddings": composite.defaults.get("tie_word_embeddings", False)} if composite else {}
    vision = table.get("vision_config")
    if composite and isinstance(vision, Mapping | None):
        shared |= composite.given(vision or {})
    towers = tuple(key for key in TOWERS if table.get(key))
    text = keys_of(inner, where, shared)
    text.used |= {*towers}  # notes say what becomes of them
    return Parts(text, table, composite, vision if isinstance(vision, Mapping) else None, towers)


def vision_keys(parts: Parts, where: str) -> Keys:
    """Return the keys of the vision tower.

    Raises:
        ModelDataError: There is none, or none that is understood.
    """
    model_type = parts.outer.get("model_type")
    if parts.composite is None:
        said = " ".join(str(model_type)[:60].split())
        raise ModelDataError(f"{where}: tower: that of model_type {said!r} is not modelled; allowed: text")
    if parts.outer.get("vision_config") is not None and parts.vision is None:
        raise ModelDataError(f"{where}: vision_config: expected a table of keys, given no table")
    table = dict(parts.vision or {})
    named = str(table.get("model_type") or parts.composite.vision)
    table["model_type"] = VISION_TYPES.get(named, named)
    return keys_of(table, where)


# --- parts to graphs --------------------------------------------------------------------------------------------------


def build_one(
    keys: Keys,
    outer: Mapping[str, Any],
    name: str,
    phase: str | None,
    overrides: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
) -> Graph:
    """Build one model.

    Args:
        keys: Its config.
        outer: The config that it is nested in, or itself.
        name: What to call it.
        phase: As for :func:`~roofline.programs.huggingface.from_config`.
        overrides: Sizes and options that win over the config's.
        extra: Options of a tower that follow from what it is joined with, instead of from its ``architectures``.

    Raises:
        ModelDataError: A key that is not understood; names it.
    """
    values = {**most_positions(keys), **options_of(keys)}
    number_format = _dtype(keys, outer)
    named = keys.table if keys.table.get("architectures") else outer  # the language model's own class knows its head
    values |= head_options(named, keys.kind, keys.where) if extra is None else extra
    quantised = outer.get("quantization_config") or keys.get("quantization_config")
    keys.ignore("quantization_config", "model_type", "architectures")
    if quantised and not isinstance(quantised, Mapping):
        keys.fail("quantization_config", f"expected a table of keys, given {str(quantised)[:60]!r}")
    ignored = keys.unread()
    absent = [key for key in _SIZES if key in keys.used and keys.name(key) not in keys.table and keys.get(key)]
    if absent and keys.table is outer:  # a nested config leaves defaults out as a rule
        said = ", ".join(f"{keys.name(key)} = {keys.get(key)}" for key in absent)
        keys.notes.append(f"absent from the config, so the default of {keys.table['model_type']}: {said}")
    file = check_model_file(
        {
            "name": name,
            "family": keys.kind.family.name,
            "dtype": number_format,
            "source": keys.where,
            "options": values,
        },
        keys.where,
    )
    graph = quantise(build_model(file, keys.where, phase, overrides, keys.kind.family), keys, quantised or {})
    return graph.with_info(notes=tuple(keys.notes), ignored=ignored)


def build_parts(parts: Parts, tower: str | None, name: str, phase: str | None, overrides: Mapping[str, Any]) -> Graph:
    """Build the parts of a config that are asked for.

    Raises:
        UsageError: No such part.
        ModelDataError: A part that is not modelled.
    """
    chosen = tower or (parts.composite.tower if parts.composite else "text")
    if chosen not in _PARTS:
        raise UsageError(f"tower: {str(chosen)[:60]!r}; allowed: {', '.join(_PARTS)}{did_you_mean(chosen, _PARTS)}")
    if chosen == "text":
        graph = build_one(parts.text, parts.outer, name, phase, overrides, _text_extra(parts, None))
        return _without(graph, parts, parts.towers)
    where = parts.text.where
    vision = vision_keys(parts, where)
    outer = Keys(where, parts.outer, parts.composite.defaults if parts.composite else {}, OUTER)
    options = _vision_extra(parts, outer, vision)
    if chosen == "vision":
        return build_one(vision, parts.outer, f"{name} vision", phase, overrides, options)
    text = build_one(parts.text, parts.outer, name, phase, overrides, _text_extra(parts, outer))
    # Language models alone are quantised as a rule.
    plain = {key: value for key, value in parts.outer.items() if key != "quantization_config"}
    tower_graph = build_one(vision, plain, f"{name} vision", None, {}, options)
    text = _without(text, parts, [key for key in parts.towers if key != "vision_config"])
    return beside(text, {"vision": tower_graph}, run=text.info.phase != "decode")


def _without(graph: Graph, parts: Parts, towers: Iterable[str]) -> Graph:
    """Say which towers are not built, and how to have the one that could be."""
    known = {"vision_config"} if parts.composite else set()
    notes = (
        f'{key} is left out; rl.from_config(..., tower="all") builds both' if key in known else f"{key} is not modelled"
        for key in towers
    )
    return graph.with_notes(*notes)


def _text_extra(parts: Parts, outer: Keys | None) -> dict[str, Any] | None:
    """Options of the text tower of a composite; ``None`` where ``architectures`` decides."""
    if parts.composite is None or not parts.composite.text_fixed:
        return None
    width = outer.size(parts.composite.text_width) if outer and parts.composite.text_width else None
    return {**parts.composite.text_fixed, **({"labels": width} if width else {})}


def _vision_extra(parts: Parts, outer: Keys, vision: Keys) -> dict[str, Any]:
    assert parts.composite is not None
    text = options_of(replace(parts.text, used=set(), notes=[]))
    fixed = parts.composite.vision_fixed
    joined = parts.composite.join(outer, text, vision)
    idle = joined.pop("idle", 0) + options_of(replace(vision, used=set(), notes=[])).get("idle", 0)
    return {**fixed, **joined, **({"idle": idle} if idle else {})}


#: What configs call the positions that a model is made for.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "max_context_length",
              "seq_length", "n_ctx")  # fmt: skip


def most_positions(keys: Keys) -> dict[str, int]:
    """Return the positions that a model is made for, where the config says; those that YaRN stretches them to."""
    key = next((key for key in _POSITIONS if keys.table.get(key) is not None), "")
    if not key or "max_positions" not in keys.kind.family.config.model_fields:
        return {}
    most, rope = keys.needed(key), keys.mapping("rope_scaling") or keys.mapping("rope_parameters")
    if rope.get("rope_type", rope.get("type")) == "yarn":
        first, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
        stretched = keys.real("rope_scaling", first) * keys.real("rope_scaling", factor)
        most = max(most, int(min(stretched, MAX_SIZE)))
    return {"max_positions": most}


def options_of(keys: Keys) -> dict[str, Any]:
    """The options of the family, as the readers of its row find them."""
    values: dict[str, Any] = {}
    for reader in keys.kind.readers:
        values |= {key: value for key, value in reader(keys).items() if value is not None}
    return values | dict(keys.kind.fixed)


def _dtype(c: Keys, outer: Mapping[str, Any]) -> str:
    """The checkpoint's number format; either level and either spelling may have it."""
    c.ignore(*_DTYPES)
    values = (level.get(key) for level in (c.table, outer) for key in _DTYPES)
    named = next((value for value in values if value not in (None, "auto")), None)
    if named is None:
        c.notes.append("the config names no dtype: bf16 is assumed")
    return str(named or "bf16")
