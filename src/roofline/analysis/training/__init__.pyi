from .distill import distill as distill
from .plan import Plan as Plan
from .step import TrainingStep as TrainingStep
from .step import train as train
