"""Encoder-decoders of the T5, BART and Whisper kinds: one row per ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.programs.architectures.seq2seq import FAMILIES
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys, Kind, Reader, row

_ENDS: dict[str, Mapping[str, Any] | None] = {
    "ForConditionalGeneration": {},
    "MTModel": {},
    "Model": {"head": False},
    "EncoderModel": None,
    "DecoderModel": None,
}
#: T5's ``feed_forward_proj``: the activation, and whether there is a gate.
_FEEDS = {"relu": ("relu", False), "gated-gelu": ("gelu_tanh", True), "gated-silu": ("silu", True),
          "gelu": ("gelu", False), "gelu_new": ("gelu_tanh", False), "silu": ("silu", False),
          "gated-gelu_new": ("gelu_tanh", True), "gated-relu": ("relu", True)}  # fmt: skip


def _t5(c: Keys) -> dict[str, Any]:
    """T5 in its own words; transformers ties the head whatever the config says."""
    layers = c.needed("num_layers", MAX_LAYERS)
    activation, gated = c.one_of("feed_forward_proj", _FEEDS)
    c.ignore("dense_act_fn", "is_gated_act", "scale_decoder_outputs", "relative_attention_max_distance",
             "tie_word_embeddings")  # fmt: skip
    scaled = c.get("scale_decoder_outputs" if "scale_decoder_outputs" in c.table else "tie_word_embeddings")
    if scaled is False:
        c.notes.append("tie_word_embeddings = false: the head is counted as tied, as transformers runs it")
    return {
        **c.needs(hidden="d_model", heads="num_heads", head_dim="d_kv", intermediate="d_ff", vocab="vocab_size",
                  buckets="relative_attention_num_buckets"),
        "encoder_layers": layers, "decoder_layers": c.size("num_decoder_layers", most=MAX_LAYERS) or layers,
        "activation": activation, "gated": gated, "logit_scale": scaled is not False,
    }  # fmt: skip


def _bart(c: Keys) -> dict[str, Any]:
    """BART and all that were written after it."""
    hidden, heads = c.needed("d_model"), c.needed("encoder_attention_heads")
    other = c.needed("decoder_attention_heads")
    for key, number in (("encoder_attention_heads", heads), ("decoder_attention_heads", other)):
        if hidden % number:
            c.fail(key, f"{number} heads do not divide d_model = {hidden}")
    c.ignore("num_hidden_layers", "scale_embedding")
    return {
        "heads": heads, "decoder_heads": other, "head_dim": hidden // heads, "tied": c.switch("tie_word_embeddings"),
        "encoder_layers": c.needed("encoder_layers", MAX_LAYERS),
        "decoder_layers": c.needed("decoder_layers", MAX_LAYERS),
        **c.needs(hidden="d_model", vocab="vocab_size", intermediate="encoder_ffn_dim",
                  decoder_intermediate="decoder_ffn_dim"),
        "activation": c.one_of("activation_function", groups.ACTIVATIONS),
    }  # fmt: skip


def _rows(offset: int) -> Reader:
    def read(c: Keys) -> dict[str, Any]:
        rows = c.needed("max_position_embeddings") + offset
        return {"positions": rows, "decoder_positions": rows}

    return read


def _marian(c: Keys) -> dict[str, Any]:
    """Tables of its own for each language pair's ends, where they are not shared."""
    own = c.size("decoder_vocab_size") or c.needed("vocab_size")
    if c.switch("share_encoder_decoder_embeddings"):
        return {}
    return {"vocab": own, "encoder_vocab": c.needed("vocab_size")}


def _whisper(c: Keys) -> dict[str, Any]:
    """An encoder of sound: two convolutions bring the spectrogram to a fixed number of positions."""
    c.ignore("classifier_proj_size", "use_weighted_layer_sum", "median_filter_width", "num_hidden_layers")
    return c.needs(mel_bins="num_mel_bins", source="max_source_positions", positions="max_source_positions",
                   decoder_positions="max_target_positions")  # fmt: skip


_FIXED: dict[str, Any] = {"buckets": 0, "norm": "layernorm", "bias": True, "logit_scale": False}
_AFTER: dict[str, Any] = {**_FIXED, "post_norms": True, "final_norm": False}
_OF: dict[str, Any] = {"family": FAMILIES["seq2seq"], "ends": _ENDS}

SEQ2SEQS: dict[str, Kind] = {
    **dict.fromkeys(("t5", "mt5"), row(_t5, **_OF)),
    "umt5": row(_t5, layer_buckets=True, **_OF),
    "bart": row(_bart, _rows(2), **_AFTER, embed_norm=True, **_OF),
    "mbart": row(_bart, _rows(2), **_FIXED, embed_norm=True, **_OF),
    **dict.fromkeys(("pegasus", "blenderbot"), row(_bart, _rows(0), **_FIXED, **_OF)),
    "marian": row(_bart, _rows(0), _marian, **_AFTER, **_OF),
    "m2m_100": row(_bart, **_FIXED, fixed_positions=True, **_OF),
    "whisper": row(_bart, _whisper, **_FIXED, k_bias=False, **_OF),
}  # fmt: skip
