"""Measure the machine at hand: calibrate a chip, time code, compare backends."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
