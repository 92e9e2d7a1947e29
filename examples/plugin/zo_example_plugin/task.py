"""A task whose texts are made from a seed."""

import random
from dataclasses import dataclass
from itertools import permutations

from zo_lightning.tasks import TaskTexts
from zo_lightning.tasks.encoding import PromptText


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Is the first of two numbers the larger one?"""

    name: str = "comparison"
    num_train: int = 200
    num_dev: int = 50
    num_test: int = 100
    seed: int = 0

    def texts(self) -> TaskTexts:
        """Distinct pairs of numbers below 100, as questions."""
        count = self.num_train + self.num_dev + self.num_test
        pairs = random.Random(self.seed).sample(list(permutations(range(100), 2)), count)
        options = (" less", " more")
        prompts = [
            PromptText(f"Is {a} more than {b}? It is", options, (int(a > b),), f"pair {a}, {b}") for a, b in pairs
        ]
        return TaskTexts(prompts=prompts, num_train=self.num_train, num_dev=self.num_dev)
