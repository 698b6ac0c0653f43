from . import charts as charts
from . import listing as listing
from . import pages as pages
