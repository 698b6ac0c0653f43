from .memory import MemoryParts as MemoryParts
from .memory import plot_memory as plot_memory
from .roof import Roofline as Roofline
from .roof import plot_roofline as plot_roofline
from .sweep import BatchSweep as BatchSweep
from .sweep import plot_batch as plot_batch
