from .backends import BackendComparison as BackendComparison
from .backends import PredictedCompile as PredictedCompile
from .backends import compare_backends as compare_backends
from .backends import predicted_compile as predicted_compile
from .calibration import calibrate_host as calibrate_host
from .checkup import Checkup as Checkup
from .checkup import doctor as doctor
from .measuring import Measurement as Measurement
