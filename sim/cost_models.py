"""The cost models by name: which of them says how long a step takes.

A new one is a class that fills in `sim.cost.CostParams`, and one entry of `COST_MODELS`.
"""

from collections.abc import Callable, Mapping

from sim.aiconfigurator import AiconfiguratorCost
from sim.cost import CostModel
from sim.hardware import Hardware
from sim.measured import MeasuredCost
from sim.models import Model
from sim.roofline import RooflineCost

COST_MODELS: Mapping[str, Callable[[Model, Hardware, str, str, int, int], CostModel]] = {
    "roofline": RooflineCost,
    "table": MeasuredCost,
    "aiconfigurator": AiconfiguratorCost,
}


def cost_model(
    name: str, model: Model, hardware: Hardware, dtype: str, kv_dtype: str, tensor_parallel: int, pipeline_parallel: int
) -> CostModel:
    """The model of that name; an unknown one lists the known."""
    if name not in COST_MODELS:
        raise ValueError(f"cost_model is {name!r}; known: {', '.join(COST_MODELS)}")
    return COST_MODELS[name](model, hardware, dtype, kv_dtype, tensor_parallel, pipeline_parallel)
