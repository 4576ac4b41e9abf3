"""What code printed is kept, however its cell ends."""

from __future__ import annotations

import threading

import dspy
import pydantic

from rlm_dspy import RLM, Run, subscribe
from rlm_dspy.environments import Subprocess
from rlm_dspy.environments.base import Environment, Transport
from rlm_dspy.errors import SandboxUnavailableError
from rlm_dspy.testing import ScriptedLM, code, oracle


def run(sandbox: Environment, *steps: str, **options: object) -> dspy.Prediction:
    with dspy.context(lm=ScriptedLM(oracle(*steps, answer={"answer": "best so far"}))):
        return RLM("context -> answer", interpreter=sandbox, **options)(context="c")  # type: ignore[arg-type]


def test_output_before_the_worker_dies(sandbox: Environment) -> None:
    # The report is asked for until it has been sent; no fixed time is waited for.
    died = "import os, time\nprint('found: 42', flush=True)\ntime.sleep(1.5)\nos._exit(3)"
    pred = run(sandbox, died, "print(context)", "SUBMIT('done')")
    first = pred.trajectory[0]
    assert "found: 42" in first.output and "status 3" in first.output
    assert pred.trajectory[1].output == "c", "the inputs are set again"
    assert pred.answer == "done"


def test_output_of_code_that_resists_its_time_limit() -> None:
    swallow = "try:\n        while True:\n            x = 1\n    except BaseException:\n        y = 1"
    resisting = f"print('found: 42')\nwhile True:\n    {swallow}"
    pred = run(Subprocess(timeout=2.0), resisting, "SUBMIT('done')")
    assert "found: 42" in pred.trajectory[0].output
    assert "was killed" in pred.trajectory[0].output
    assert pred.answer == "done"


def test_an_answer_of_code_that_then_resists_is_kept() -> None:
    swallow = "try:\n        while True:\n            x = 1\n    except BaseException:\n        y = 1"
    stubborn = f"try:\n    SUBMIT('found it')\nexcept BaseException:\n    pass\nwhile True:\n    {swallow}"
    pred = run(Subprocess(), stubborn, max_seconds=3.0)
    assert (pred.outcome, pred.answer) == ("submitted", "found it")


RUNS: list[Run] = []


class Slow(pydantic.BaseModel):
    """Takes longer to check than the last run in `RUNS` has time."""

    value: str

    @pydantic.field_validator("value")
    @classmethod
    def _slowly(cls, value: str) -> str:
        while (RUNS[-1].ledger.seconds_left or 0) > 0:
            threading.Event().wait(0.01)
        return value


def test_an_answer_that_comes_at_the_last_moment_is_checked_and_kept(sandbox: Environment) -> None:
    """Validation begins before ``max_seconds`` and ends after it."""
    signature = dspy.Signature({"context": (str, dspy.InputField()), "answer": (Slow, dspy.OutputField())})
    lm = ScriptedLM([code("SUBMIT({'value': 'in time'})")])
    with dspy.context(lm=lm), subscribe(lambda event, run: RUNS.append(run)):
        pred = RLM(signature, interpreter=sandbox, max_seconds=2.0)(context="c")
    assert pred.trajectory.events[-1].seconds > 2.0
    assert pred.outcome == "submitted" and pred.answer.value == "in time"


class OneStart(Subprocess):
    """Starts once, and then never again."""

    def __init__(self, starts: list[int]) -> None:
        super().__init__()
        self._starts = starts

    def open(self) -> Transport:
        self._starts.append(1)
        if len(self._starts) > 1:
            raise SandboxUnavailableError("no second start")
        return super().open()


def test_an_answer_whose_sandbox_died_and_cannot_start_again_is_kept(no_leaks: None) -> None:
    died = "kept = 1\ntry:\n    SUBMIT('in time')\nexcept BaseException:\n    import os; os._exit(3)"
    pred = run(OneStart([]), "kept = 0\nprint('a turn')", died)
    assert pred.outcome == "submitted" and pred.answer == "in time"
    assert [event.kind for event in pred.trajectory.events].count("run_ended") == 1
