"""Where a config is from, which part of it is meant, and what its ``architectures`` ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roofline.ir.errors import ModelDataError, did_you_mean
from roofline.ir.jsonfile import read_json
from roofline.programs.huggingface.composites import COMPOSITES, VISION_TYPES, Composite
from roofline.programs.huggingface.decoders import CAUSAL
from roofline.programs.huggingface.defaults import DEFAULTS
from roofline.programs.huggingface.keys import Keys, Kind
from roofline.programs.huggingface.kinds import KINDS, KNOWN

#: Where configs of several towers keep the language model.
NESTED = ("text_config", "llm_config", "language_config")

#: What they hold beside it.
TOWERS = ("vision_config", "audio_config")


def read_source(source: object) -> tuple[Mapping[str, Any], str, str]:
    """Return the config's contents, where they are from, and what to call the model.

    A loaded model or a config object is asked for its dictionary; neither transformers nor torch is imported.
    """
    if isinstance(source, Mapping):
        return source, "config", _name(source)
    if isinstance(source, str | os.PathLike):
        return _read_path(Path(source).expanduser())
    config = getattr(source, "config", source)
    to_dict = getattr(config, "to_dict", None)
    table = to_dict() if callable(to_dict) and not isinstance(source, type) else None
    if not isinstance(table, Mapping):
        raise ModelDataError(
            f"config: wanted a file, a folder, a table of keys, a config or a model, given {type(source).__name__}"
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
        raise ModelDataError(f"{file}: wanted a table of keys, given {str(table)[:60]}")
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return table, str(file), name[:200] or "config"


#: Names of model types that an error lists.
_SHOWN = 12


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
            raise ModelDataError(f"{where}: {key}: wanted a table of keys, given {str(table[key])[:60]!r}")
    nested: tuple[Any, ...] = tuple(table.get(key) for key in NESTED)
    inner: Mapping[str, Any] = next((config for config in nested if _is_model(config, composite)), table)
    if composite is not None and ("model_type" not in inner or inner is table):
        inner = {**inner, "model_type": composite.text}
    if inner is not table and table.get("tie_word_embeddings") is not None:
        inner = {**inner, "tie_word_embeddings": table["tie_word_embeddings"]}  # the head belongs to the whole model
    shared = {"tie_word_embeddings": composite.defaults.get("tie_word_embeddings", False)} if composite else {}
    vision = table.get("vision_config")
    towers = tuple(key for key in TOWERS if table.get(key))
    text = keys_of(inner, where, shared)
    text.used |= {*towers}  # notes say what becomes of them
    return Parts(text, table, composite, vision if isinstance(vision, Mapping) else None, towers)


def _is_model(nested: Any, composite: Composite | None) -> bool:
    if not isinstance(nested, Mapping):
        return False
    return composite is not None or "num_hidden_layers" in nested or str(nested.get("model_type")) in KINDS


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
        raise ModelDataError(f"{where}: vision_config: wanted a table of keys, given no table")
    table = dict(parts.vision or {})
    named = str(table.get("model_type") or parts.composite.vision)
    table["model_type"] = VISION_TYPES.get(named, named)
    return keys_of(table, where)
