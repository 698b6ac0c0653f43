"""Graph to graph: each pass is a plain function in a file of its own."""

from roofline.passes.fuse import fuse, unfuse
from roofline.passes.inductor import inductor
from roofline.passes.pad import pad
from roofline.passes.retype import retype
from roofline.passes.unmask import unmask

__all__ = ["fuse", "inductor", "pad", "retype", "unfuse", "unmask"]
