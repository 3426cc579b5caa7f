"""Claims about prefill apart from decoding at equal pace: tokens a GPU apart against together, by `experiments.rate_match`.

    rate_match:
      model: deepseek-r1
      hardware: gb200
      weights: nvfp4                # element type of the weights
      cache: fp8                    # element type of the cache
      loads: [[4400, 1200], ...]    # prompt and generated tokens of every request
      drafts: [[0, 0], [3, 2.0]]    # drafted tokens a step, and how many of them are right on average
      paces: [20, 50, 100]          # tokens a second for each user
      context: [4, 8]               # GPUs of a context worker to try
      generation: [4, 8, 16, 32]    # GPUs of a generation worker, and of one that does both

Each setting is one operating point: the best split apart, and the best together, among those that give every user the pace.
It simulates nothing.
"""

from typing import Any

import pandas as pd
from pydantic import Field

from experiments.rate_match import Load, Machine, aggregated, best_at, matched
from experiments.section import Count, Section
from sim.hardware import load_hardware
from sim.layout import Split
from sim.models import load_model

PER_DOUBLING = 8
"""Batch sizes from one to its double: so many that the curves have no steps."""


class RateMatch(Section):
    """What to compare at which paces."""

    model: str = Field(description="a model preset")
    hardware: str = Field(description="a hardware preset")
    weights: str = Field(description="element type of the weights")
    cache: str = Field(description="element type of the cache")
    loads: tuple[tuple[Count, Count], ...] = Field(description="prompt and generated tokens, pairs")
    drafts: tuple[tuple[int, float], ...] = Field(default=((0, 0.0),), description="drafts a step and those accepted")
    paces: tuple[float, ...] = Field(description="tokens/s of each user")
    context: tuple[Count, ...] = Field(description="GPUs of a context worker")
    generation: tuple[Count, ...] = Field(description="GPUs of a generation worker")
    max_num_tokens: Count = Field(default=8192, description="tokens of one context step")

    def pairs(self) -> pd.DataFrame:
        """`load`, `drafts`, `pace`, `base` (together) and `other` (apart), tokens/s of a GPU.

        A pace that one of the two ways does not reach has no row.
        """
        machine = Machine(load_model(self.model), load_hardware(self.hardware), self.weights, self.cache)
        rows = [
            row
            for isl, osl in self.loads
            for drafts, accepted in self.drafts
            for row in self._points(machine, Load(isl, osl, drafts, accepted))
        ]
        return pd.DataFrame(rows)

    def _points(self, machine: Machine, load: Load) -> list[dict[str, Any]]:
        context, generation = (tuple(map(Split, sizes)) for sizes in (self.context, self.generation))
        most = self.max_num_tokens
        apart = [p for c in context for g in generation for p in matched(machine, c, g, load, most, PER_DOUBLING)]
        together = [p for g in generation for p in aggregated(machine, g, load, most, PER_DOUBLING)]
        rows = []
        for pace in self.paces:
            a, b = best_at(apart, pace), best_at(together, pace)
            if a is not None and b is not None:
                rows.append({
                    "load": f"{load.isl:,} in, {load.osl:,} out",
                    **({"drafts": f"{load.drafts}, {load.accepted:g} right"} if len(self.drafts) > 1 else {}),
                    "pace": pace,
                    "base": b.tokens_per_s_per_gpu,
                    "other": a.tokens_per_s_per_gpu,
                })
        return rows
