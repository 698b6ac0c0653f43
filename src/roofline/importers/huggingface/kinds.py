"""Every ``model_type`` that is understood."""

from __future__ import annotations

from roofline.importers.huggingface.composites import COMPOSITES
from roofline.importers.huggingface.decoders import DECODERS
from roofline.importers.huggingface.encoders import ENCODERS
from roofline.importers.huggingface.hybrids import HYBRIDS
from roofline.importers.huggingface.keys import Kind
from roofline.importers.huggingface.seq2seqs import SEQ2SEQS
from roofline.importers.huggingface.vision import VISION

#: Models of one tower, and towers.
KINDS: dict[str, Kind] = {**DECODERS, **HYBRIDS, **ENCODERS, **SEQ2SEQS, **VISION}

#: All of them, models of several towers among them.
KNOWN = (*KINDS, *COMPOSITES)
