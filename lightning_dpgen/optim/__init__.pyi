from .private import PrivateOptimizer as PrivateOptimizer
from .stages import training_stage as training_stage
