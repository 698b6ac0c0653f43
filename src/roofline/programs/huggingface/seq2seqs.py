"""Encoder-decoders of the T5, BART and Whisper kinds: one row a ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys, Kind, Reader

_HEADS: dict[str, Mapping[str, Any] | None] = {
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
    c.used |= {"dense_act_fn", "is_gated_act", "scale_decoder_outputs", "relative_attention_max_distance"}
    scaled = c.get("scale_decoder_outputs" if "scale_decoder_outputs" in c.table else "tie_word_embeddings")
    c.used |= {"tie_word_embeddings"}
    if scaled is False:
        c.notes.append("tie_word_embeddings = false: the head is counted as tied, as transformers runs it")
    return {
        "hidden": c.needed("d_model"), "heads": c.needed("num_heads"), "head_dim": c.needed("d_kv"),
        "intermediate": c.needed("d_ff"), "vocab": c.needed("vocab_size"), "encoder_layers": layers,
        "decoder_layers": c.size("num_decoder_layers", most=MAX_LAYERS) or layers,
        "buckets": c.needed("relative_attention_num_buckets"), "activation": activation, "gated": gated,
        "logit_scale": scaled is not False,
    }  # fmt: skip


def _bart(c: Keys) -> dict[str, Any]:
    """BART and all that were written after it."""
    hidden, heads = c.needed("d_model"), c.needed("encoder_attention_heads")
    other = c.needed("decoder_attention_heads")
    for key, number in (("encoder_attention_heads", heads), ("decoder_attention_heads", other)):
        if hidden % number:
            c.fail(key, f"{number} heads do not divide d_model = {hidden}")
    c.used |= {"num_hidden_layers", "scale_embedding"}
    return {
        "hidden": hidden, "heads": heads, "decoder_heads": other, "head_dim": hidden // heads,
        "encoder_layers": c.needed("encoder_layers", MAX_LAYERS),
        "decoder_layers": c.needed("decoder_layers", MAX_LAYERS),
        "intermediate": c.needed("encoder_ffn_dim"), "decoder_intermediate": c.needed("decoder_ffn_dim"),
        "vocab": c.needed("vocab_size"), "tied": c.switch("tie_word_embeddings"),
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
    c.used |= {"classifier_proj_size", "use_weighted_layer_sum", "median_filter_width", "num_hidden_layers"}
    rows = c.needed("max_source_positions")
    return {"mel_bins": c.needed("num_mel_bins"), "source": rows, "positions": rows,
            "decoder_positions": c.needed("max_target_positions")}  # fmt: skip


_FIXED = {"buckets": 0, "norm": "layernorm", "bias": True, "logit_scale": False}
_AFTER = {**_FIXED, "post_norms": True, "final_norm": False}

SEQ2SEQS: dict[str, Kind] = {
    "t5": Kind((_t5,), family="seq2seq", heads=_HEADS),
    "mt5": Kind((_t5,), family="seq2seq", heads=_HEADS),
    "umt5": Kind((_t5,), {"layer_buckets": True}, family="seq2seq", heads=_HEADS),
    "bart": Kind((_bart, _rows(2)), {**_AFTER, "embed_norm": True}, family="seq2seq", heads=_HEADS),
    "mbart": Kind((_bart, _rows(2)), {**_FIXED, "embed_norm": True}, family="seq2seq", heads=_HEADS),
    "pegasus": Kind((_bart, _rows(0)), _FIXED, family="seq2seq", heads=_HEADS),
    "blenderbot": Kind((_bart, _rows(0)), _FIXED, family="seq2seq", heads=_HEADS),
    "marian": Kind((_bart, _rows(0), _marian), _AFTER, family="seq2seq", heads=_HEADS),
    "m2m_100": Kind((_bart,), {**_FIXED, "fixed_positions": True}, family="seq2seq", heads=_HEADS),
    "whisper": Kind((_bart, _whisper), {**_FIXED, "k_bias": False}, family="seq2seq", heads=_HEADS),
}  # fmt: skip
