"""No framework in particular: the mathematics of parallel training alone.

Its plans keep only the rules that every plan keeps, and its code is plain PyTorch. Runs
of a code base that nothing is known of are priced as this.
"""

from __future__ import annotations

from meshwright.frameworks.base.framework import Framework
from meshwright.frameworks.base.mixed_precision import mixed_precision_state
from meshwright.plans.skeletons import GRADIENTS, OPTIMIZER, PARAMETERS

FRAMEWORK = Framework(
    title="any framework",
    mixed_state=mixed_precision_state,
    offloads=(OPTIMIZER, GRADIENTS, PARAMETERS),
)
