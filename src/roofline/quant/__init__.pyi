from .front import Front as Front
from .front import front as front
from .pruning import Pruned as Pruned
from .pruning import prune as prune
