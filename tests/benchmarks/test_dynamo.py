"""`pytest -m benchmark tests/benchmarks/test_dynamo.py -s` prints kvtier beside Dynamo's replayer; it asserts no time."""

import pytest

from tests.benchmarks import dynamo


@pytest.mark.benchmark
def test_kvtier_and_dynamo_replay_the_same_trace(capsys: pytest.CaptureFixture[str]) -> None:
    dynamo.main()
    with capsys.disabled():
        print(capsys.readouterr().out)


def test_without_dynamo_one_line_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo, "installed", lambda: None)
    dynamo.main()
    assert capsys.readouterr().out == (
        "ai-dynamo-runtime 1.6.1 is not installed here (found: None): pip install ai-dynamo-runtime==1.6.1\n"
    )
