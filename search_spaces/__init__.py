"""The settings of a training run, the domains to search, and the rules that scale settings.

The names in ``__all__`` are public; the modules are internal and may change.
"""

from search_spaces.domains import Categorical, Domain, Float, Int, Role
from search_spaces.scaling_rules import SCALING_RULES, ScalingRule
from search_spaces.settings import SettingError, TrainingSettings
from search_spaces.space import SearchSpace, SearchSpaceError

__all__ = [
    "SCALING_RULES",
    "Categorical",
    "Domain",
    "Float",
    "Int",
    "Role",
    "ScalingRule",
    "SearchSpace",
    "SearchSpaceError",
    "SettingError",
    "TrainingSettings",
]
