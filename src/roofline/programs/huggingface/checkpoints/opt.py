"""OPT, with its narrower token table, and fairseq's XGLM and CTRL, with positions that are not learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.config import Count
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers.base import Run, become
from roofline.programs.layers.primitives import linear


class OPTConfig(DecoderConfig):
    """A decoder's keys and OPT's own."""

    #: Width of the token table where it is not ``hidden``, with a projection after it (OPT-350M); 0 for the same.
    embed_width: Count = 0


@dataclass(frozen=True)
class NarrowEmbeddings(parts.Embeddings):
    """Rows of a table that is narrower than the residual stream."""

    columns: int = 1

    @property
    def width(self) -> int:
        """Columns of the token table."""
        return self.columns

    def tokens(self, run: Run, ids: str) -> str:
        """Return the projected embeddings of tokens."""
        return linear(run.b, super().tokens(run, ids), self.hidden, "project_in")


@dataclass(frozen=True)
class NarrowHead(parts.Head):
    """Logits from a projection to the width of the token table."""

    columns: int = 1

    def transform(self, run: Run, x: str) -> str:
        """Return the head's input."""
        return linear(run.b, x, self.columns, "project_out")


@dataclass(frozen=True)
class FixedPositions(parts.Embeddings):
    """Rows of the token table with positions that are not learned."""

    def place(self, run: Run, x: str) -> str:
        """Add positions."""
        return run.b.op("add", x, run.b.input("position_rows", (run.new, self.hidden)), name="embed_positions")


def _embeddings(c: OPTConfig) -> parts.Embeddings:
    usual = parts.embeddings(c)
    return become(NarrowEmbeddings, usual, columns=c.embed_width) if c.embed_width else usual


def _head(c: OPTConfig) -> parts.Head:
    return become(NarrowHead, parts.head(c), columns=c.embed_width) if c.embed_width else parts.head(c)


def _fixed_positions(c: DecoderConfig) -> parts.Embeddings:
    return become(FixedPositions, parts.embeddings(c))


def _opt(c: Keys) -> dict[str, Any]:
    """Read norms before or after; a narrower token table with projections."""
    before, width = c.switch("do_layer_norm_before"), c.size("word_embed_proj_dim")
    return {
        "pre_norms": before,
        "sum_norms": not before,
        "final_norm": before and not c.switch("_remove_final_layer_norm"),
        "embed_width": 0 if width in (None, c.needed("hidden_size")) else width,
        "norm_scale": c.get("layer_norm_elementwise_affine") is not False,
    }


_FIXED = parts.variant(embeddings=_fixed_positions)
_FAIRSEQ: dict[str, Any] = {**groups.GPT_FIXED, "embedding_scale": True}

ROWS = {
    "opt": row(*groups.BASE, groups.inner, groups.offset_positions, _opt, groups.all_biases("enable_bias"),
        norm="layernorm", gated=False, rope=False,
        names={"hidden_act": "activation_function", "intermediate_size": "ffn_dim"},
        family=parts.variant(OPTConfig, embeddings=_embeddings, head=_head)),
    "biogpt": row(*groups.BASE, groups.inner, groups.offset_positions, **_FAIRSEQ),
    "xglm": row(
        *groups.BASE, groups.inner, **_FAIRSEQ,
        names={"hidden_size": "d_model", "num_hidden_layers": "num_layers", "intermediate_size": "ffn_dim",
               "num_attention_heads": "attention_heads", "hidden_act": "activation_function"},
        family=_FIXED,
    ),
    "ctrl": row(groups.body, groups.heads, groups.inner, **_FAIRSEQ, head_bias=True, activation="relu",
        names={**groups.GPT_NAMES, "intermediate_size": "dff"}, family=_FIXED),
}  # fmt: skip
