"""Does a measured time make sense, and if not why: verdict, causes that add up, advice; a trace on its own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
