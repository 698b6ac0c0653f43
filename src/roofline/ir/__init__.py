"""What everything is written in: sizes, number formats, units, errors, and the graph of a program."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
