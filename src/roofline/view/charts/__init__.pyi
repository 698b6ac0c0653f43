from .plot import BatchSweep as BatchSweep
from .plot import Roofline as Roofline
from .plot import plot_batch as plot_batch
from .plot import plot_roofline as plot_roofline
