"""What a call does round its turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, engine
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Reply, ScriptedLM, code


class NeverRead(list[Any]):
    """A history of LM calls that nobody may go through: after a day's work it has ten thousand entries."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the history was read")


def keyed(secret: str) -> dspy.Predict:
    """A predictor with an LM of its own, whose key looks like a word."""
    predictor = dspy.Predict("q -> a")
    predictor.lm = dspy.LM("openai/some-model", api_key=secret)
    return predictor


class Program(RLM):
    """Predictors in all the places where a module may hold them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps = [keyed("wordinalist")]
        self.named = {"one": keyed("wordinadict"), "other": 3}
        self.inner = dspy.ChainOfThought("q -> a")
        self.inner.predict = keyed("wordinamodule")
        self.frozen = dspy.ChainOfThought("q -> a")
        self.frozen.predict = keyed("wordinacompiledmodule")
        self.frozen._compiled = True
        self.itself = self
        self.history = NeverRead()


@pytest.mark.parametrize("secret", ["wordinalist", "wordinadict", "wordinamodule", "wordinacompiledmodule"])
def test_keys_of_all_predictors_are_hidden_and_no_history_is_gone_through(sandbox: Environment, secret: str) -> None:
    def leak() -> None:
        """Fail with a key in the message."""
        raise ValueError(f"refused: {secret} is no key")

    program = Program("q -> a", tools=[leak], interpreter=sandbox)
    with dspy.context(lm=ScriptedLM([code("leak()"), code("SUBMIT('done')")])):
        prediction = program(q="x")
    assert prediction.a == "done"
    assert "refused: " in prediction.trajectory[0].output and secret not in prediction.trajectory[0].output


def test_a_run_that_is_cancelled_while_its_error_is_explained_still_ends_in_order(
    sandbox: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, gate = threading.Event(), threading.Event()

    def slow(error: Exception, lm: Any) -> None:
        asked.set()
        gate.wait(30)

    monkeypatch.setattr(engine, "diagnose", slow)

    async def main() -> None:
        task = asyncio.create_task(RLM("q -> a", interpreter=sandbox).acall(q="x"))
        await asyncio.to_thread(asked.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        assert [event.kind for event in raised.value.trajectory.events][-1] == "run_ended"
        assert "the LM is down" in str(raised.value.__context__)

    try:
        with dspy.context(lm=ScriptedLM([Reply(error=RuntimeError("the LM is down"))])):
            asyncio.run(main())
    finally:
        gate.set()
