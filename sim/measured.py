"""Seconds of a step from kernels that somebody timed: `compute.measured` of a hardware file, as `kvtier calibrate` writes it.

The tables hold rates by size, so they carry over to any model (`sim.hardware` has their units):

    dense layers       products by their shape as in `sim.products`, times what a product of 8192 x 8192 was measured to
                       take at as many rows over what that rule says of it
    prefill attention  pairs at the rate of their mean context
    decode attention   a layer's cache bytes at the rate of so many bytes

Products in another number format than bf16 are looked up where they lie at the same place between memory and peak:
`rows` of d bytes a weight and a peak of F behave as rows x (2 / d) x (bf16 peak / F) do in bf16. Between the measured
sizes rates are read in logs; beyond them they stay as at the edge, and a run says how many of its steps that was.
Experts, norms, all-reduces and overheads were not timed: they are the roofline's.
"""

import numpy as np

from sim import cost
from sim.cost import CostParams, assembled
from sim.hardware import Hardware
from sim.models import Model
from sim.products import Card, dense_seconds, seconds
from sim.roofline import RooflineCost
from sim.surface import Numbers, surface

WIDTH = 8192
"""Columns and inner values of the product that is timed."""


class MeasuredCost:
    """See `sim.cost.CostModel`. A machine without `compute.measured` is refused."""

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        dtype: str = "bf16",
        kv_dtype: str = "bf16",
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
    ) -> None:
        if not hardware.measured:
            raise ValueError(
                f"cost_model is table and hardware {hardware.name} has no compute.measured: give hardware the file that"
                " `kvtier calibrate` wrote, or cost_model roofline"
            )
        self._base = base = RooflineCost(model, hardware, dtype, kv_dtype, tensor_parallel, pipeline_parallel)
        self._hardware, self._model, self._ranks = hardware, model, tensor_parallel
        tables = {cost.DENSE: self._dense(), cost.PREFILL: self._prefill(), cost.DECODE: self._decode()}
        figures = {**base.figures(), cost.ATTENTION_LATENCY_S: 0.0, cost.DECODE_LATENCY_S: 0.0, cost.LIMITED: 1.0}
        self.params: CostParams = assembled(figures, tables)
        source = hardware.sources.get("compute.measured.linear", hardware.name)
        self.notes = (f"steps: products and attention as measured ({source}); the rest by the roofline",)

    def _dense(self) -> Numbers:
        card = self._base.card()
        bf16 = Card(
            self._hardware.flops["bf16"] * self._hardware.linear_efficiency, card.bytes_per_s, card.multiprocessors, 2.0
        )
        same_place = card.weight_bytes / 2.0 * card.flops_per_s / bf16.flops_per_s
        rows, values = [], []
        for timed, rate in self._hardware.measured["linear"]:
            over_rule = 2.0 * timed * WIDTH**2 / rate / seconds(bf16, timed, WIDTH, WIDTH)
            tokens = timed * same_place
            rows.append(tokens)
            values.append(over_rule * dense_seconds(card, self._model, tokens, self._ranks) / tokens)
        return surface(rows, (1.0,), np.array(values))

    def _prefill(self) -> Numbers:
        table = self._hardware.measured["prefill_attention"]
        flops = self._model.attention_flops_per_pair() / self._ranks
        return surface([size for size, _ in table], (1.0,), np.array([flops / rate for _, rate in table]))

    def _decode(self) -> Numbers:
        """One layer's bytes of a context token are the same in every layer."""
        table = self._hardware.measured["decode_attention"]
        each = sum(self._base.per_token.values()) / self._model.layers
        return surface([size / each for size, _ in table], (1.0,), np.array([each / rate for _, rate in table]))
