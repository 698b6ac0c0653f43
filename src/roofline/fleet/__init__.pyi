from .question import Question as Question
from .results import Fleet as Fleet
from .results import read as read
from .run import run as run
