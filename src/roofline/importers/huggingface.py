"""A Hugging Face ``config.json`` of a Llama-like model to a graph.

The keys are translated to those of the ``decoder`` family and built by the same code as a model file. What an absent
key means is the default of the class in the transformers library that ``model_type`` names. A key that the cost
depends on and that is not translated is an error, never ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from roofline.errors import ModelDataError, did_you_mean
from roofline.graph import Graph
from roofline.importers import read_json
from roofline.modelfile import build_model, check_model_file
from roofline.passes import retype

#: A size in a config beyond this is a mistake, and so are more layers than that.
MAX_SIZE = 10**9
MAX_LAYERS = 2000

#: Keys of every family that become sizes of the decoder as they are.
_SIZES = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
}

#: Activations by their names in transformers.
_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
}  # fmt: skip

#: Keys that no cost depends on, though their names look as if.
_HARMLESS = frozenset({
    "bias_dropout", "chunk_size_feed_forward", "cross_attention_hidden_size", "diversity_penalty",
    "encoder_no_repeat_ngram_size", "image_token_index", "initializer_factor", "initializer_range",
    "layer_norm_eps", "max_position_embeddings", "mm_tokens_per_image", "no_repeat_ngram_size", "norm_topk_prob",
    "num_beam_groups", "num_beams", "num_image_tokens", "num_labels", "num_logits_to_keep", "num_return_sequences",
    "original_max_position_embeddings", "output_router_logits", "pad_token_id", "pretraining_tp", "pruned_heads",
    "query_pre_attn_scalar", "rms_norm_eps", "router_aux_loss_coef", "router_jitter_noise", "tie_encoder_decoder",
})  # fmt: skip

#: What the name of a key that the cost depends on looks like.
_COSTLY = re.compile(
    r"^(num|n)_|_(size|dim|rank|layers?|heads?|freq|step|pattern|width)$|"
    r"expert|window|sparse|mamba|ssm|conv|lora|bias|quant|hybrid|latent|parallel|cross|embed_dim|ffn|inner|block|bidirectional"
)

#: Where configs of several towers keep the language model.
_NESTED = ("text_config", "llm_config", "language_config")

#: What such configs hold beside it.
_TOWERS = ("vision_config", "audio_config")

#: What a model must end in; a classifier or an encoder has another head.
_HEADS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")

_Reader = Callable[["_Config"], dict[str, Any]]


@dataclass
class _Config:
    """A config, and which of its keys were asked for.

    Attributes:
        where: The file, for errors.
        table: The keys of the language model.
        defaults: What absent keys mean.
        used: Keys that were understood.
        notes: What a reader of the result should know.
    """

    where: str
    table: Mapping[str, Any]
    defaults: Mapping[str, Any]
    used: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The value, the default where it is absent."""
        self.used.add(key)
        return self.table.get(key, self.defaults.get(key))

    def size(self, key: str, least: int = 1, most: int = MAX_SIZE) -> int | None:
        """A whole number; ``None`` where it is absent or null."""
        value = self.get(key)
        if value is None:
            return None
        whole = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
        if not whole or value != int(value):
            self.fail(key, f"wanted a whole number from {least} to {most}, given {str(value)[:60]!r}")
        return int(value)

    def needed(self, key: str, most: int = MAX_SIZE) -> int:
        """A whole number that must be there."""
        value = self.size(key, most=most)
        if value is None:
            self.fail(key, "missing")
        return value

    def switch(self, key: str) -> bool:
        """A truth value, false where it is absent or null."""
        value = self.get(key)
        if not isinstance(value, bool | None):
            self.fail(key, f"wanted true or false, given {str(value)[:60]!r}")
        return bool(value)

    def number(self, key: str) -> float:
        """A number that is not negative, 0 where it is absent or null."""
        value = self.get(key) or 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            self.fail(key, f"wanted a number from 0, given {str(value)[:60]!r}")
        return float(value)

    def fail(self, key: str, why: str) -> NoReturn:
        """Raise an error that names the key."""
        raise ModelDataError(" ".join(f"{self.where}: {key}: {why}".split()))


# --- one function a group of keys: transformers' words in, the decoder's words out -----------------------------------


def _sizes(c: _Config) -> dict[str, Any]:
    c.needed("num_hidden_layers", MAX_LAYERS)
    return {
        **{ours: c.needed(theirs) for ours, theirs in _SIZES.items()},
        "kv_heads": c.size("num_key_value_heads"),
        "head_dim": c.size("head_dim"),
        "tied": c.switch("tie_word_embeddings"),
    }


def _activation(c: _Config) -> dict[str, Any]:
    c.get("hidden_act")
    key = "hidden_activation" if "hidden_activation" in {*c.table, *c.defaults} else "hidden_act"
    name = c.get(key) or c.defaults.get(key)
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        near = did_you_mean(str(name), _ACTIVATIONS)
        c.fail(key, f"{str(name)[:60]!r} is not understood; allowed: {', '.join(_ACTIVATIONS)}{near}")
    return {"activation": _ACTIVATIONS[name]}


def _biases(c: _Config) -> dict[str, Any]:
    """Llama, Qwen3, Gemma: one switch for all four projections."""
    return {"qkv_bias": c.switch("attention_bias"), "out_bias": c.switch("attention_bias")}


def _mlp_bias(c: _Config) -> dict[str, Any]:
    return {"mlp_bias": c.switch("mlp_bias")}


def _window(c: _Config) -> dict[str, Any]:
    """A window that is null, absent or switched off means full attention in all layers."""
    window, pattern = c.size("sliding_window", least=0), c.get("layer_types")
    on = c.switch("use_sliding_window") if "use_sliding_window" in {*c.table, *c.defaults} else True
    first = c.size("max_window_layers", least=0)
    if pattern is not None:
        return _layer_types(c, pattern, window)
    if not window or not on:
        return {}
    layers = c.needed("num_hidden_layers")
    every = c.size("sliding_window_pattern", most=MAX_LAYERS)
    if every:
        return {"window": window, "pattern": ["sliding"] * (every - 1) + ["full"]}
    full = min(first or 0, layers)
    return {"window": window, "pattern": ["full"] * full + ["sliding"] * (layers - full)} if full < layers else {}


def _layer_types(c: _Config, pattern: Any, window: int | None) -> dict[str, Any]:
    kinds = {"sliding_attention": "sliding", "full_attention": "full"}
    layers = c.needed("num_hidden_layers")
    if not isinstance(pattern, list) or len(pattern) != layers:
        given = len(pattern) if isinstance(pattern, list) else "no list"
        c.fail("layer_types", f"wanted {layers} entries, one a layer (num_hidden_layers), given {given}")
    for kind in map(str, pattern):
        if kind not in kinds:
            c.fail("layer_types", f"{kind[:60]!r} is not understood; allowed: {', '.join(kinds)}")
    if "sliding_attention" in pattern and not window:
        c.fail("sliding_window", "missing, and layer_types has sliding_attention")
    return {"window": window, "pattern": [kinds[kind] for kind in pattern]} if window else {}


def _softcaps(c: _Config) -> dict[str, Any]:
    return {
        "attention_softcap": c.number("attn_logit_softcapping"),
        "logit_softcap": c.number("final_logit_softcapping"),
    }


def _partial_rotary(c: _Config) -> dict[str, Any]:
    if (share := c.number("partial_rotary_factor")) not in (0, 1):
        c.notes.append(f"partial_rotary_factor = {share:g}: the rotary step is counted on whole heads")
    return {}


def _mixtral_experts(c: _Config) -> dict[str, Any]:
    return {"experts": c.needed("num_local_experts"), "top_k": c.needed("num_experts_per_tok")}


def _qwen_experts(c: _Config) -> dict[str, Any]:
    if (step := c.size("decoder_sparse_step")) != 1:
        c.fail("decoder_sparse_step", f"{step} is not understood yet (dense and sparse layers in turn); allowed: 1")
    dense = c.get("mlp_only_layers") or []
    if not isinstance(dense, list) or dense != list(range(len(dense))):
        c.fail("mlp_only_layers", f"{str(dense)[:60]} is not understood yet; allowed: the first layers in order")
    shared = c.size("shared_expert_intermediate_size", least=0) or 0
    return {
        "experts": c.needed("num_experts"),
        "top_k": c.needed("num_experts_per_tok"),
        "expert_intermediate": c.needed("moe_intermediate_size"),
        "dense_layers": len(dense),
        "shared_intermediate": shared,
        "shared_gate": bool(shared),
    }


# --- the families -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """A ``model_type``: its class defaults, the groups of keys that it has, and what is fixed in its code."""

    defaults: Mapping[str, Any]
    readers: tuple[_Reader, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)


_ALL: tuple[_Reader, ...] = (_sizes, _activation)
_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_QWEN3_MOE = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1}
_QWEN2_MOE = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
              "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1}  # fmt: skip
_GEMMA = {"tie_word_embeddings": True, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh"}
_GEMMA2 = {**_GEMMA, "sliding_window": 4096, "sliding_window_pattern": 2,
           "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # fmt: skip
_GEMMA3 = {**_GEMMA, "sliding_window": 4096, "sliding_window_pattern": 6, "vocab_size": 262208,
           "num_attention_heads": 8, "num_key_value_heads": 4}  # fmt: skip
_NORMED = {"embedding_scale": True, "post_norms": True}

#: Each ``model_type`` that is understood.
KINDS: dict[str, _Kind] = {
    "llama": _Kind({"hidden_act": "silu"}, (*_ALL, _biases, _mlp_bias)),
    "mistral": _Kind({"hidden_act": "silu", "sliding_window": 4096}, (*_ALL, _window)),
    "mixtral": _Kind({"hidden_act": "silu", "num_local_experts": 8, "num_experts_per_tok": 2},
                     (*_ALL, _window, _mixtral_experts)),
    "phi3": _Kind({"hidden_act": "silu"}, (*_ALL, _window, _partial_rotary)),
    "qwen2": _Kind({"hidden_act": "silu", **_QWEN_WINDOW}, (*_ALL, _window), {"qkv_bias": True}),
    "qwen3": _Kind({"hidden_act": "silu", "head_dim": 128, **_QWEN_WINDOW}, (*_ALL, _window, _biases),
                   {"qk_norm": True}),
    "qwen2_moe": _Kind({"hidden_act": "silu", **_QWEN_WINDOW, **_QWEN2_MOE}, (*_ALL, _window, _qwen_experts),
                       {"qkv_bias": True}),
    "qwen3_moe": _Kind({"hidden_act": "silu", **_QWEN_WINDOW, **_QWEN3_MOE},
                       (*_ALL, _window, _biases, _qwen_experts), {"qk_norm": True}),
    "gemma": _Kind(_GEMMA, (*_ALL, _biases), {"embedding_scale": True}),
    "gemma2": _Kind(_GEMMA2, (*_ALL, _window, _biases, _softcaps), _NORMED),
    "gemma3_text": _Kind(_GEMMA3, (*_ALL, _window, _biases, _softcaps), {**_NORMED, "qk_norm": True}),
}  # fmt: skip

#: Quantised checkpoints: method, bits, group, symmetric -> number format of the layers' matrices. GPTQ and AWQ store
#: a zero point for each group whether it is used or not.
QUANTISED: dict[tuple[str, int, int, bool], str] = {
    ("gptq", 4, 128, False): "int4-g128-z4",
    ("awq", 4, 128, False): "int4-g128-z4",
    ("compressed-tensors", 4, 128, True): "int4-g128-sym",
    ("compressed-tensors", 8, 128, True): "int8-g128",
}


def from_config(
    source: str | os.PathLike[str] | Mapping[str, Any],
    phase: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    **overrides: Any,
) -> Graph:
    """Build the model that a ``config.json`` describes.

    Args:
        source: The file, its folder, or its contents.
        phase: ``forward``, ``prefill`` (the default) or ``decode``.
        dtype: Number format of weights, activations and cache; the config's when absent.
        weights: Number format of the weights alone.
        cache: Number format of the KV cache alone.
        overrides: Sizes and options of the decoder family, such as ``layers=8`` or ``attention="naive"``.

    Raises:
        ModelDataError: Not a config, an unknown ``model_type``, or a key that is not understood; names it.

    Example:
        >>> from_config({"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4,
        ...              "num_attention_heads": 8, "vocab_size": 1000}).parameters
        341568
    """
    table, where, name = _read(source)
    config = _language_model(table, where)
    kind = KINDS[config.table["model_type"]]
    values = {key: value for reader in kind.readers for key, value in reader(config).items() if value is not None}
    number_format = _dtype(config, table)
    values |= {**kind.fixed, **_quantised(config, table)}
    _refuse_unknown(config)
    file = check_model_file(
        {"name": name, "family": "decoder", "dtype": number_format, "source": where, "options": values}, where
    )
    graph = build_model(file, where, phase, overrides)
    towers = (f"{key} is not modelled" for key in _TOWERS if table.get(key))
    graph = replace(graph, info={**graph.info, "notes": (*config.notes, *towers)})
    return retype(graph, dtype=dtype, weights=weights, cache=cache) if dtype or weights or cache else graph


def _read(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Mapping[str, Any], str, str]:
    """The config's contents, where they are from, and what to call the model."""
    if isinstance(source, Mapping):
        return source, "config", str(source.get("_name_or_path") or source.get("model_type") or "config")[:200]
    path = Path(source).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise ModelDataError(f"{path}: a directory without config.json")
    table = read_json(file)
    if not isinstance(table, Mapping):
        raise ModelDataError(f"{file}: wanted a table of keys, given {str(table)[:60]}")
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return table, str(file), name[:200] or "config"


def _language_model(table: Mapping[str, Any], where: str) -> _Config:
    """The keys of the language model: a nested config that declares layers wins over the top level."""
    nested = (table.get(key) for key in _NESTED)
    inner = next((t for t in nested if isinstance(t, Mapping) and "num_hidden_layers" in t), table)
    model_type = inner.get("model_type")
    if not isinstance(model_type, str):
        raise ModelDataError(f"{where}: model_type: missing; allowed: {', '.join(KINDS)}")
    if model_type not in KINDS:
        near = did_you_mean(model_type, KINDS)
        raise ModelDataError(
            f"{where}: model_type: {model_type[:60]!r} is not understood; allowed: {', '.join(KINDS)}{near}"
        )
    heads = table.get("architectures") or []
    for head in heads if isinstance(heads, list) else [heads]:
        if not str(head).endswith(_HEADS):
            allowed = ", ".join(f"...{end}" for end in _HEADS)
            raise ModelDataError(f"{where}: architectures: {str(head)[:60]!r} is not understood; allowed: {allowed}")
    outer = {key: table[key] for key in ("tie_word_embeddings",) if key in table}
    return _Config(where, inner, {**KINDS[model_type].defaults, **outer})


def _dtype(c: _Config, table: Mapping[str, Any]) -> str:
    """The checkpoint's number format; either level and either spelling may have it."""
    c.used |= {"dtype", "torch_dtype"}
    given = (level.get(key) for level in (c.table, table) for key in ("dtype", "torch_dtype"))
    found = next((value for value in given if value not in (None, "auto")), None)
    if found is None:
        c.notes.append("the config names no dtype: bf16 is assumed")
    return str(found or "bf16")


def _quantised(c: _Config, table: Mapping[str, Any]) -> dict[str, Any]:
    """The number format of the layers' matrices in a quantised checkpoint; tables, norms and head keep theirs."""
    c.used.add("quantization_config")
    quantised = table.get("quantization_config") or c.table.get("quantization_config")
    if not quantised:
        return {}
    found = _scheme(quantised) if isinstance(quantised, Mapping) else None
    if found is None or found not in QUANTISED:
        known = "; ".join(map(_said, QUANTISED))
        c.fail("quantization_config", f"{_said(found)} is not understood; allowed: {known}")
    return {"linear_dtype": QUANTISED[found]}


def _scheme(table: Mapping[str, Any]) -> tuple[str, int, int, bool] | None:
    """Method, bits, group size and symmetry, wherever a method writes them."""
    method = table.get("quant_method")
    if method == "compressed-tensors":
        groups = table.get("config_groups")
        groups = list(groups.values()) if isinstance(groups, Mapping) else []
        inner = groups[0].get("weights") if len(groups) == 1 and isinstance(groups[0], Mapping) else None
        if not isinstance(inner, Mapping) or inner.get("type") != "int":
            return None
        return ("compressed-tensors", _int(inner.get("num_bits")), _int(inner.get("group_size")),
                inner.get("symmetric") is True)  # fmt: skip
    return (str(method)[:40], _int(table.get("bits")), _int(table.get("group_size")), False)


def _said(scheme: tuple[str, int, int, bool] | None) -> str:
    if scheme is None:
        return "a scheme without method, bits and group size"
    method, bits, group, symmetric = scheme
    return f"{method} with {bits} bits in groups of {group}{', symmetric' * symmetric}"


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _refuse_unknown(c: _Config) -> None:
    """Refuse a key that the cost may depend on and that nothing has read."""
    for key, value in ((str(key), value) for key, value in c.table.items()):
        off = value is None or value is False or value in (0, 1, "", [], {})
        if key not in c.used and key not in _HARMLESS and not off and _COSTLY.search(key):
            near = did_you_mean(key, c.used)
            c.fail(
                key[:100],
                f"{str(value)[:60]} is not understood for model_type {c.table['model_type']!r}, and the cost may "
                f"depend on it; understood: {', '.join(sorted(c.used))}{near}",
            )
