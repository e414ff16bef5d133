"""How a batch becomes a loss. One file a method; importing it here is what registers it.

natural       CE(x)
adversarial   β·CE(x') + (1−β)·CE(x): AT and half-half
"""

from generalist.objectives.adversarial import adversarial
from generalist.objectives.natural import natural
from generalist.objectives.registry import OBJECTIVES

__all__ = ["OBJECTIVES", "adversarial", "natural"]
