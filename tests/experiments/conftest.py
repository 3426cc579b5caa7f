"""Small workloads, written out by hand."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kvcache.request import Labels, Requests

Build = Callable[..., Requests]


@pytest.fixture
def build() -> Build:
    """Requests from lists of content units: `build([[1, 2], [1, 3]], session=[0, 1])`."""

    def make(
        prompts: Sequence[Sequence[int]],
        *,
        unit_tokens: int = 16,
        prompt_tokens: Sequence[int] | None = None,
        session: Sequence[int] = (),
        salt: Sequence[int] = (),
        tenant: Sequence[str] = (),
    ) -> Requests:
        offset = np.cumsum([0, *(len(units) for units in prompts)]).astype(np.int64)
        tokens = prompt_tokens or [len(units) * unit_tokens for units in prompts]
        names = tuple(dict.fromkeys(tenant))
        return Requests(
            "test",
            unit_tokens,
            np.arange(len(prompts), dtype=np.float64),
            np.array(tokens, np.int32),
            np.full(len(prompts), 10, np.int32),
            offset,
            np.array([unit for units in prompts for unit in units], np.int32),
            session=np.array(session, np.int32),
            salt=np.array(salt, np.int32),
            labels={"tenant": Labels(np.array([names.index(t) for t in tenant], np.int32), names)} if names else {},
        )

    return make
