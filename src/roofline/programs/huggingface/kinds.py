"""Every ``model_type`` that is understood."""

from __future__ import annotations

from roofline.programs.huggingface.checkpoints import blocks
from roofline.programs.huggingface.composites import COMPOSITES
from roofline.programs.huggingface.decoders import DECODERS
from roofline.programs.huggingface.encoders import ENCODERS
from roofline.programs.huggingface.hybrids import HYBRIDS
from roofline.programs.huggingface.keys import Kind
from roofline.programs.huggingface.seq2seqs import SEQ2SEQS
from roofline.programs.huggingface.vision import VISION

#: Models of one tower, and towers.
KINDS: dict[str, Kind] = {**DECODERS, **HYBRIDS, **ENCODERS, **blocks.ENCODERS, **SEQ2SEQS, **VISION}

#: All of them, models of several towers among them.
KNOWN = (*KINDS, *COMPOSITES)
