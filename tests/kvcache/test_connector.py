"""The connector's two sides have the calls of TensorRT-LLM's, as far as blocks and not layers are concerned."""

import inspect

from kvcache.connector import ConnectorScheduler, ConnectorWorker


def calls(side: type) -> dict[str, list[str]]:
    public = inspect.getmembers(side, lambda member: inspect.isfunction(member) and not member.__name__.startswith("_"))
    return {name: list(inspect.signature(call).parameters)[1:] for name, call in public}


def test_the_scheduler_is_asked_for_tokens_beyond_those_computed() -> None:
    assert calls(ConnectorScheduler) == {"get_num_new_matched_tokens": ["nodes", "num_computed_tokens"]}


def test_the_worker_loads_saves_and_reports_and_has_no_call_a_layer() -> None:
    blocks = ["request", "nodes", "slots"]
    assert calls(ConnectorWorker) == {"start_load": blocks, "start_save": blocks, "get_finished": []}
