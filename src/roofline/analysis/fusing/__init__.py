"""What fusing does to a program: accesses, bytes and time by policy, and whether two kernels can be one.

``table`` sets the policies of ``passes.fuse`` side by side, ``explain`` answers for a pair, ``reasons`` has the
rules by which kernels fit each other, ``pressure`` what a fused kernel asks of registers and shared memory,
``recompute`` whether a shared result is better computed again, ``tiles`` how flash attention tiles.
"""

from roofline.analysis.fusing.explain import Explanation, explain_fusion
from roofline.analysis.fusing.pressure import Pressure, pressure
from roofline.analysis.fusing.recompute import StoreOrRecompute, store_or_recompute
from roofline.analysis.fusing.table import Fusion, Group, PolicyRow, fusion
from roofline.analysis.fusing.tiles import FlashTiles, flash_tiles

__all__ = [
    "Explanation", "FlashTiles", "Fusion", "Group", "PolicyRow", "Pressure", "StoreOrRecompute", "explain_fusion",
    "flash_tiles", "fusion", "pressure", "store_or_recompute",
]  # fmt: skip
