"""Every limit is respected, says where it struck, and costs no answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, LimitReached, Run, RunFailed, first_look, subscribe
from rlm_dspy.environments import Subprocess
from rlm_dspy.environments.base import Environment, Transport
from rlm_dspy.errors import SandboxUnavailableError
from rlm_dspy.run import Stopped
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

BEST = "[[ ## a ## ]]\nbest guess\n\n[[ ## completed ## ]]"


def acting(*replies: Any, best: Any = BEST) -> ScriptedLM:
    """A root that acts from a list (the last again and again) and answers ``extract`` with ``best``."""

    def policy(call: Call) -> str | Reply:
        if "No more code can run" in call.prompt:
            return best
        return replies[min(call.turn, len(replies) - 1)]

    return ScriptedLM(policy)


def run(root: ScriptedLM, sandbox: Environment, **options: Any) -> tuple[Any, list[Any]]:
    log: list[Any] = []
    with dspy.context(lm=root), subscribe(lambda event, run: log.append(event)):
        prediction = RLM("q -> a", interpreter=sandbox, **options)(q="x")
    return prediction, log


def struck(log: list[Any]) -> list[tuple[str, str]]:
    return [(event.limit, event.where) for event in log if event.kind == "limit_struck"]


def in_time(attempt: Callable[[float], tuple[Any, list[Any]]], reached: Callable[[Any, list[Any]], bool]) -> Any:
    """``attempt(max_seconds)`` with more and more of them, until the run came as far as the test is about.

    On a busy machine the first turn alone may take longer than a test should.
    """
    for seconds in (0.7, 3.0, 12.0):
        prediction, log = attempt(seconds)
        if reached(prediction, log):
            break
    return prediction, log


def test_max_iters(sandbox: Environment) -> None:
    prediction, log = run(acting(code("1"), code("2"), code("3")), sandbox, max_iters=3)
    assert prediction.outcome == "extracted" and prediction.outcome.limit == "max_iters"
    assert prediction.a == "best guess" and len(prediction.trajectory) == 3
    assert struck(log) == [("max_iters", "turns")] and prediction.usage["turns"] == 3


def test_an_answer_at_the_last_turn_is_kept(sandbox: Environment) -> None:
    prediction, log = run(acting(code("1"), code("SUBMIT('mine')")), sandbox, max_iters=2)
    assert (prediction.a, prediction.outcome, struck(log)) == ("mine", "submitted", [])


def test_a_submission_that_spends_the_last_call_is_kept(sandbox: Environment) -> None:
    sub = ScriptedLM(lambda call: "yes")
    prediction, _ = run(acting(code("SUBMIT(llm_query('x'))")), sandbox, max_llm_calls=1, max_iters=1, sub_lm=sub)
    assert (prediction.a, prediction.outcome) == ("yes", "submitted")


def test_the_last_turn_is_announced(sandbox: Environment) -> None:
    root = acting(code("1"))
    run(root, sandbox, max_iters=2)
    line = "[turn 2 of 2; this is the last turn: SUBMIT now]"
    output, _, after = root.calls[1].prompt.partition(f"\n{line}\n")
    assert output.strip().endswith("1") and "last turn" not in output + after
    assert "last turn" not in root.calls[0].prompt


def test_a_root_that_goes_in_circles_is_told_once_and_then_stopped(sandbox: Environment) -> None:
    root = acting(code("1"))
    prediction, log = run(root, sandbox, max_iters=9)
    assert (prediction.outcome, prediction.outcome.limit, prediction.a) == ("extracted", "repeats", "best guess")
    assert struck(log) == [("repeats", "turns")] and len(prediction.trajectory) == 3
    assert ["before" in call.prompt.split("Task:")[0] for call in root.calls[:3]] == [False, False, True]
    prediction, log = run(acting(code("1")), sandbox, max_iters=4, guidance={"break_repeats": False})
    assert struck(log) == [("max_iters", "turns")] and len(prediction.trajectory) == 4


def test_max_llm_calls_refuses_whole_batches_and_the_run_goes_on(sandbox: Environment) -> None:
    sub = ScriptedLM(lambda call: call.prompt)
    source = (
        "out = llm_query_batched(['a', 'b'])\n"
        "for ask in (lambda: llm_query_batched(['c', 'd']), lambda: llm_query('c'), lambda: llm_query('d')):\n"
        "    try: out.append(ask())\n    except RuntimeError as e: out.append(str(e))\n"
        "SUBMIT(str([*out, budget()['llm_calls']]))"
    )
    prediction, _ = run(acting(code(source)), sandbox, max_llm_calls=3, sub_lm=sub)
    assert prediction.outcome == "submitted" and len(sub.calls) == prediction.usage["calls"] == 3
    assert "2 sub-LM calls asked for, 1 of 3 left (max_llm_calls)" in prediction.a
    assert "1 sub-LM call asked for, 0 of 3 left" in prediction.a and prediction.a.endswith(", 0]")


def test_a_batch_that_is_cut_off_gives_back_what_it_did_not_use(sandbox: Environment) -> None:
    gate, entered = threading.Event(), threading.Event()

    def sub(call: Call) -> str:
        entered.set()
        gate.wait(20)
        return "late"

    def asked() -> bool:
        return entered.wait(20)

    source = (
        "import threading\n"
        "def ask():\n    try: llm_query_batched([f'x{n}' for n in range(10)])\n    except BaseException: pass\n"
        "t = threading.Thread(target=ask, daemon=True); t.start()\nasked()"
    )
    try:
        root = acting(code(source), code("SUBMIT(str(budget()['llm_calls']))"))
        prediction, _ = run(root, sandbox, max_llm_calls=10, max_concurrency=1, sub_lm=ScriptedLM(sub), tools=[asked])
    finally:
        gate.set()
    # Only the one that was under way when the cell ended is spent.
    assert prediction.a == "9" and prediction.usage["calls"] == 1


def test_no_sub_calls_at_all(sandbox: Environment) -> None:
    prediction, _ = run(acting(code("llm_query('x')")), sandbox, max_llm_calls=0, max_iters=1)
    assert "0 of 0 left" in prediction.trajectory[0].output and prediction.usage["calls"] == 0


def test_max_errors_counts_in_a_row(sandbox: Environment) -> None:
    prediction, log = run(acting(code("1/0"), code("1"), code("2/0"), "no code"), sandbox, max_errors=2)
    assert prediction.outcome.limit == "max_errors" and len(prediction.trajectory) == 4
    assert struck(log) == [("max_errors", "turns")] and prediction.usage["errors"] == 3


@pytest.mark.parametrize("sync_only", [False, True])
def test_max_seconds_while_the_root_thinks(sandbox: Environment, sync_only: bool) -> None:
    gate = threading.Event()

    def policy(call: Call) -> str:
        if "No more code can run" in call.prompt:
            return BEST
        if call.turn:
            gate.wait(30)
        return code("1")

    root = ScriptedLM(policy, sync_only=sync_only)
    try:
        # One that can be awaited blocks in a thread as well: DSPy calls it synchronously.
        prediction, log = in_time(
            lambda seconds: run(root, sandbox, max_seconds=seconds), lambda prediction, log: bool(prediction.trajectory)
        )
    finally:
        gate.set()
    assert prediction.a == "best guess" and struck(log) == [("max_seconds", "act")]
    assert len(prediction.trajectory) == 1 and log[-1].seconds < 25


@pytest.mark.parametrize("source", ["while True: pass", "import time; time.sleep(1e9)", "never()", "llm_query('x')"])
def test_max_seconds_while_code_runs_keeps_what_it_printed(sandbox: Environment, source: str) -> None:
    gate = threading.Event()

    def never() -> None:
        gate.wait(30)

    def sub(call: Call) -> str:
        gate.wait(30)
        return "late"

    options = {"tools": [never], "sub_lm": ScriptedLM(sub)}
    root = acting(code(f"print('so far', flush=True)\n{source}"))
    try:
        prediction, log = in_time(
            lambda seconds: run(root, sandbox, max_seconds=seconds, **options),
            lambda prediction, log: any("so far" in turn.output for turn in prediction.trajectory),
        )
    finally:
        gate.set()
    assert prediction.outcome == "extracted" and prediction.outcome.limit == "max_seconds"
    assert prediction.trajectory[0].output.startswith("so far")
    assert [limit for limit, _ in struck(log)] == ["max_seconds"] and log[-1].seconds < 25


def test_max_concurrency_is_the_width_and_everything_is_answered(sandbox: Environment) -> None:
    lock, now, peak = threading.Lock(), 0, 0

    def sub(call: Call) -> Reply:
        nonlocal now, peak
        with lock:
            now += 1
            peak = max(peak, now)
        time.sleep(0.005)
        with lock:
            now -= 1
        return Reply(call.prompt.upper())

    source = "r = llm_query_batched([f'p{i}' for i in range(40)])\nSUBMIT(','.join(r))"
    prediction, _ = run(acting(code(source)), sandbox, max_concurrency=4, sub_lm=ScriptedLM(sub))
    assert prediction.a == ",".join(f"P{i}" for i in range(40))
    assert peak <= 4 and 1 < prediction.usage["peak_width"] <= 4 and prediction.usage["calls"] == 40


def test_one_failing_prompt_of_a_batch_comes_back_in_its_slot(sandbox: Environment) -> None:
    def sub(call: Call) -> Reply:
        return Reply(error=ValueError("no")) if call.prompt == "b" else Reply(call.prompt)

    root = acting(code("SUBMIT(str(llm_query_batched(['a', 'b', 'c'])))"))
    prediction, _ = run(root, sandbox, sub_lm=ScriptedLM(sub))
    assert "'a'" in prediction.a and "'c'" in prediction.a and "[ERROR]" in prediction.a


def test_extract_seconds(sandbox: Environment) -> None:
    gate = threading.Event()

    def policy(call: Call) -> str:
        if "No more code can run" in call.prompt:
            gate.wait(30)
        return code("1")

    try:
        prediction, _ = run(ScriptedLM(policy), sandbox, max_iters=1, extract_seconds=0.2)
    finally:
        gate.set()
    assert prediction.outcome == "failed" and prediction.outcome.limit == "max_iters"
    assert prediction.a == "1" and len(prediction.trajectory) == 1
    assert prediction.outcome.error == "TimeoutError: no answer was extracted within 0.2 seconds (extract_seconds)"


def test_a_timeout_of_the_lm_in_extract_is_its_own(sandbox: Environment) -> None:
    root = ScriptedLM([code("1"), Reply(error=TimeoutError("the provider took too long"))])
    prediction, _ = run(root, sandbox, max_iters=1)
    assert prediction.outcome == "failed" and "the provider took too long" in prediction.outcome.error


@pytest.mark.parametrize("when", ["turn_started", "acted", "call_started", "turn_ended"])
def test_a_stop_from_another_thread_gives_the_best_answer(sandbox: Environment, when: str) -> None:
    gate = threading.Event()

    def wait() -> None:
        gate.wait(30)

    def on_event(event: Any, run: Run) -> None:
        if event.kind == when:
            thread = threading.Thread(target=run.request_stop, args=("enough",))
            thread.start()
            thread.join()

    try:
        with dspy.context(lm=acting(code("print(1, flush=True)\nwait()"))), subscribe(on_event):
            prediction = RLM("q -> a", interpreter=sandbox, tools=[wait], max_seconds=20)(q="x")
    finally:
        gate.set()
    assert prediction.outcome.limit == ("enough" if when != "turn_ended" else prediction.outcome.limit)
    assert (prediction.a, prediction.outcome) == ("best guess", "extracted")


def test_the_first_stop_counts_and_one_before_the_start_is_kept() -> None:
    program = RLM("q -> a")
    run = Run(program, {"q": "x"}, program.limits, lambda: None)
    run.request_stop("first")
    run.request_stop("second")

    async def main() -> None:
        run.attach()
        with pytest.raises(Exception, match="first"):
            await run.bounded(asyncio.Event().wait())

    asyncio.run(main())
    assert run.stop_reason == "first"
    run.request_stop("after the loop has gone")


@pytest.mark.parametrize("when", ["acting", "extracting"])
def test_a_stop_that_wants_no_answer_asks_for_none(sandbox: Environment, when: str) -> None:
    """It ends at once, also in the middle of ``extract``, and what was computed is kept."""
    going: list[Run] = []
    asked: list[str] = []
    gate = threading.Event()

    def root(call: Any) -> Any:
        asked.append("extracting" if "No more code can run" in call.prompt else "acting")
        if len(asked) == 1:
            return code("a = 'half'\nprint(a)")
        if asked[-1] == when:
            threading.Thread(target=going[0].request_stop, kwargs={"answer": False}).start()
            gate.wait(60)
        return code("1")

    def on_event(event: Any, run: Run) -> None:
        if event.kind == "run_started":
            going.append(run)

    try:
        with dspy.context(lm=ScriptedLM(root)), subscribe(on_event):
            prediction = RLM("q -> a", interpreter=sandbox, max_iters=2)(q="x")
    finally:
        gate.set()
    assert asked[-1] == when and (prediction.a, prediction.outcome) == ("half", "failed")
    assert "no answer was asked for" in prediction.outcome.error


class Bounded:
    """A run without a session, to bound work with."""

    def __init__(self, **limits: Any) -> None:
        program = RLM("q -> a", **limits)
        self.run = Run(program, {"q": "x"}, program.limits, lambda: None)

    def drive(self, check: Callable[[Run], Any]) -> None:
        async def main() -> None:
            self.run.attach()
            await check(self.run)
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
            await asyncio.sleep(0)  # a cancellation that was left behind would strike here

        asyncio.run(main())


def test_what_is_interrupted_may_still_give_its_result() -> None:
    async def check(run: Run) -> None:
        asked = asyncio.Event()

        async def work() -> str:
            await asked.wait()
            return "what it had"

        assert await run.bounded(work(), interrupt=asked.set) == "what it had"

    Bounded(max_seconds=0.05).drive(check)


def test_what_resists_the_interrupt_is_cancelled_after_the_grace() -> None:
    steps: list[str] = []

    async def check(run: Run) -> None:
        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                steps.append("cleaned up")

        with pytest.raises(Stopped, match="max_seconds"):
            await run.bounded(work(), interrupt=lambda: steps.append("interrupted"), grace=0.05)

    Bounded(max_seconds=0.05).drive(check)
    assert steps == ["interrupted", "cleaned up"]


def test_an_error_on_the_way_out_of_a_cancellation_is_still_the_limit() -> None:
    async def check(run: Run) -> None:
        async def work() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise OSError("the connection was cut") from None

        with pytest.raises(Stopped):
            await run.bounded(work())

    Bounded(max_seconds=0.05).drive(check)


@pytest.mark.parametrize("late", [False, True], ids=["before the limit", "after the limit"])
def test_a_cancellation_from_outside_goes_before_the_limit(late: bool) -> None:
    async def check(run: Run) -> None:
        cleaning = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                await asyncio.sleep(0.01)

        async def main() -> None:
            await run.bounded(work())

        task = asyncio.create_task(main())
        if late:
            run.request_stop("enough")
            await cleaning.wait()
        else:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    Bounded().drive(check)


def test_a_cancellation_between_two_bounds_strikes_in_the_second() -> None:
    """Ctrl-C does that: its handler cancels the task in the middle of a step."""

    async def check(run: Run) -> None:
        task = asyncio.current_task()
        assert task is not None
        for _ in range(2):
            await run.bounded(asyncio.sleep(0))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run.bounded(asyncio.sleep(0))
            task.uncancel()

    Bounded().drive(check)


def test_a_run_in_the_clean_up_of_a_cancelled_task_has_its_own_limits() -> None:
    """A cancellation that was dealt with before the run began is none of it."""
    bounded = Bounded()

    async def check(run: Run) -> None:
        bounded.run.request_stop("enough")
        with pytest.raises(Stopped, match="enough"):
            await run.bounded(asyncio.Event().wait())

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        bounded.run.attach()
        await check(bounded.run)
        assert task.cancelling() == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["run_started", "session_opened", "turn_started", "acted", "executed", "turn_ended"])
def test_a_task_that_is_cancelled_by_what_watches_it(sandbox: Environment, kind: str) -> None:
    cancelled: list[Any] = []

    def watch(event: Any, run: Run) -> None:
        if event.kind == kind and not cancelled:
            cancelled.append(asyncio.current_task())
            cancelled[0].cancel()

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError) as raised:
            await RLM("q -> a", interpreter=sandbox).acall(q="x")
        assert [event.kind for event in raised.value.trajectory.events][-1] == "run_ended"

    with dspy.context(lm=acting(code("1"), code("2"), code("3"))), subscribe(watch):
        asyncio.run(main())
    assert cancelled


def test_a_time_limit_around_a_run_is_its_callers() -> None:
    async def check(run: Run) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await run.bounded(asyncio.Event().wait())
        run.request_stop("enough")
        with pytest.raises(Stopped, match="enough"):
            async with asyncio.timeout(20):
                await run.bounded(asyncio.Event().wait())

    Bounded().drive(check)


def test_on_limit_raise_carries_the_best_answer(sandbox: Environment) -> None:
    with pytest.raises(LimitReached) as raised:
        run(acting(code("1")), sandbox, max_iters=1, on_limit="raise")
    assert raised.value.limit == "max_iters" and raised.value.prediction.a == "best guess"
    assert len(raised.value.trajectory) == 1


def test_on_limit_raise_with_an_error(sandbox: Environment) -> None:
    broken = Reply(error=RuntimeError("the LM is down"))
    with pytest.raises(RunFailed, match="the LM is down") as raised:
        run(acting(code("1"), broken), sandbox, on_limit="raise")
    assert raised.value.prediction.a == "best guess" and "the LM is down" in str(raised.value.__cause__)


def test_raised_where_no_answer_could_be_extracted(sandbox: Environment) -> None:
    root = acting(code("1"), best=Reply(error=ValueError("the LM is down")))
    with pytest.raises(RunFailed, match=r"stopped at max_iters, and no answer .*: .*is down") as raised:
        run(root, sandbox, max_iters=1, on_limit="raise")
    assert raised.value.limit == "max_iters" and len(raised.value.prediction.trajectory) == 1


def test_an_error_before_the_first_turn_is_finished_is_raised_with_the_trajectory(sandbox: Environment) -> None:
    with pytest.raises(Exception, match="down from the start") as raised:
        run(acting(Reply(error=RuntimeError("down from the start"))), sandbox)
    assert list(raised.value.trajectory) == []
    assert [event.kind for event in raised.value.trajectory.events][-1] == "run_ended"


def test_an_error_later_is_an_outcome(sandbox: Environment) -> None:
    prediction, log = run(acting(code("1"), Reply(error=RuntimeError("down later"))), sandbox)
    assert (prediction.a, prediction.outcome, prediction.outcome.limit) == ("best guess", "extracted", None)
    assert "down later" in prediction.outcome.error and len(prediction.trajectory) == 1
    assert log[-1].error == prediction.outcome.error


def test_an_lm_that_cancels_itself_is_an_error_like_any_other(sandbox: Environment) -> None:
    def policy(call: Call) -> str:
        if "No more code can run" in call.prompt:
            return BEST
        if call.turn:
            raise asyncio.CancelledError("pool closed")
        return code("1")

    prediction, _ = run(ScriptedLM(policy), sandbox)
    assert (prediction.a, prediction.outcome) == ("best guess", "extracted")
    assert "cancelled from within" in prediction.outcome.error


def test_when_extract_fails_too_nothing_is_lost(sandbox: Environment) -> None:
    root = acting(code("print('found it')"), best=Reply(error=RuntimeError("down")))
    prediction, log = run(root, sandbox, max_iters=1)
    assert prediction.outcome == "failed" and prediction.a == "found it"
    assert prediction.trajectory[0].output == "found it"
    assert [event.kind for event in log][-2:] == ["extracted", "run_ended"]


def test_a_limit_strikes_while_the_session_opens() -> None:
    """As where all sessions of the process are taken: the time runs, and the run ends with an outcome."""

    class Never(Subprocess):
        def open(self) -> Transport:
            release.wait(60)
            raise SandboxUnavailableError("nobody waits any more")

    release = threading.Event()
    lm = ScriptedLM(lambda call: "[[ ## answer ## ]]\nfrom nothing\n\n[[ ## completed ## ]]")
    try:
        with dspy.context(lm=lm):
            pred = RLM("context -> answer", interpreter=Never(), max_seconds=0.2)(context="x")
    finally:
        release.set()
    assert (pred.outcome, pred.outcome.limit, pred.answer) == ("extracted", "max_seconds", "from nothing")
    assert pred.trajectory == []
    assert "Task: x\n" in lm.calls[0].prompt


def test_a_large_input_is_looked_through_while_the_session_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither waits for the other to end, and the root has both."""
    opening = threading.Event()

    class Noted(Subprocess):
        def open(self) -> Transport:
            opening.set()
            return super().open()

    def look(text: str, task: str = "", words: Any = None) -> str:
        assert opening.wait(20), "the session is opened only after the look"
        return "what the look found"

    monkeypatch.setattr(first_look, "look", look)
    root = acting(code("SUBMIT(a=len(q))"))
    with dspy.context(lm=root):
        assert RLM("q -> a", interpreter=Noted())(q="x " * 50_000).a == "100000"
    assert "what the look found" in root.calls[0].prompt
