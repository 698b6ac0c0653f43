from .events import Trace as Trace
from .reading import read_trace as read_trace
