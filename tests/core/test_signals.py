"""Runs that are cut off anywhere leave no process behind, and nothing that was done is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, subscribe
from rlm_dspy.environments import sessions
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Reply, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")

PRELUDE = """
import asyncio, os, signal, sys, threading, time
import dspy
import rlm_dspy
from rlm_dspy import RLM, environments
from rlm_dspy.environments import pool
from rlm_dspy.testing import Reply, ScriptedLM, code

ENVIRONMENT = environments.get(os.environ.get("RLM_TEST_ENV", "subprocess"))

STUBBORN = "while True:\\n    try:\\n        while True: pass\\n    except BaseException: pass"

def say(*words):
    print(*words, flush=True)

def children():
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        found += int(parent) == os.getpid() and state != "Z"
    return found

def left():
    "Child processes that are still there after a while."
    pool.close()
    deadline = time.monotonic() + 5
    while children() and time.monotonic() < deadline:
        time.sleep(0.01)
    return children()

def saying_turns(event, run):
    if event.kind == "turn_started" and event.turn == 2:
        say("second turn")
"""


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_line(process: Any, text: str) -> None:
    """Read the script's output up to a line that contains ``text``."""
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"{text!r} never came; stderr: {process.stderr.read()}")


# --------------------------------------------------------------------------------------------------------------- Ctrl-C

WORK = {
    "in code": 'code("import time\\nprint(\'working\')\\ntime.sleep(600)")',
    "in code that ignores it": "code(STUBBORN)",
    "in a synchronous tool": 'code("block()")',
    "in an asynchronous tool": 'code("ablock()")',
    "in a sub-call": 'code("llm_query(\'slow\')")',
    "in the root's reply": 'Reply("late", delay=600)',
}
CTRL_C = PRELUDE + """
def block():
    "Wait."
    while not ended.wait(0.01):
        pass

async def ablock():
    "Wait."
    await asyncio.sleep(600)

ended = threading.Event()
sub = ScriptedLM(lambda call: Reply("late", delay=600))
rlm = RLM("query -> answer", tools=[block, ablock], sub_lm=sub, interpreter_factory=ENVIRONMENT)
lm = ScriptedLM([code("print('first')"), WORK, "never asked"])
with dspy.context(lm=lm), rlm_dspy.subscribe(saying_turns):
    try:
        CALL
        say("no interrupt")
    except KeyboardInterrupt as error:
        ended.set()
        say("interrupted", [turn["output"] for turn in error.trajectory][:1])
        say("children", left())
"""


@pytest.mark.parametrize("where", list(WORK))
@pytest.mark.parametrize("how", ["main thread", "notebook"])
def test_ctrl_c(in_python: Callable[..., Any], where: str, how: str) -> None:
    """KeyboardInterrupt, the trajectory on it, no process left; also in a loop that already runs."""
    call = "rlm(query='q')"
    if how == "notebook":
        call = "asyncio.new_event_loop().run_until_complete(notebook())"
    script = CTRL_C.replace("WORK", WORK[where], 1).replace("CALL", call, 1)
    script = script.replace("ended = thr", "async def notebook():\n    return rlm(query='q')\n\nended = thr", 1)
    process = in_python(script)
    wait_for_line(process, "second turn")
    time.sleep(0.1)  # into the middle of the turn; sooner would be as good
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out.splitlines() == ["interrupted ['first']", "children 0"], out + err
    assert time.monotonic() - started < 28
    assert process.returncode == 0


AT = {"run_started": 0, "session_opened": 0, "turn_started": 2, "acted": 2, "executed": 2, "turn_ended": 2}


@pytest.mark.parametrize("kind", list(AT))
def test_ctrl_c_while_the_run_waits_for_nothing(in_python: Callable[..., Any], kind: str) -> None:
    """In the middle of one of its own steps; the next thing that it waits for is what is cut off."""
    script = PRELUDE + f"""
def strike(event, run):
    if event.kind == "{kind}" and getattr(event, "turn", 0) == {AT[kind]}:
        signal.raise_signal(signal.SIGINT)

lm = ScriptedLM([code("1"), code("2"), code("SUBMIT('x')"), "not asked"])
with dspy.context(lm=lm), rlm_dspy.subscribe(strike):
    try:
        say("no interrupt", RLM("query -> answer", interpreter_factory=ENVIRONMENT)(query="q"))
    except KeyboardInterrupt as error:
        say("interrupted", len(lm.calls), "children", left(), error.trajectory.events[-1].kind)
"""
    out, err = in_python(script).communicate(timeout=60)
    asked = {"run_started": 0, "session_opened": 0, "turn_started": 1}.get(kind, 2)
    assert out == f"interrupted {asked} children 0 run_ended\n", out + err


def test_ctrl_c_while_the_sandbox_starts(in_python: Callable[..., Any]) -> None:
    script = PRELUDE + """
from rlm_dspy.environments.subprocess_env import Subprocess
class Slow(Subprocess):
    def open(self):
        say("opening")
        time.sleep(1.5)
        return super().open()
try:
    with dspy.context(lm=ScriptedLM([])):
        RLM("query -> answer", interpreter_factory=Slow())(query="q")
except KeyboardInterrupt as error:
    say("interrupted", list(error.trajectory))
    time.sleep(2)  # longer than the start of the sandbox that nobody waits for any more
    say("children", left())
"""
    process = in_python(script)
    wait_for_line(process, "opening")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out.splitlines() == ["interrupted []", "children 0"], err


def test_the_process_goes_on_after_ctrl_c(in_python: Callable[..., Any]) -> None:
    """The next call works, on the same thread and its event loop."""
    script = PRELUDE + """
replies = [code("1"), code("import time; time.sleep(600)")]
lm = ScriptedLM(lambda call: replies[call.turn])
rlm = RLM("query -> answer", interpreter_factory=ENVIRONMENT)
with dspy.context(lm=lm), rlm_dspy.subscribe(saying_turns):
    try:
        rlm(query="q")
    except KeyboardInterrupt:
        replies = [code("SUBMIT('again')")]
        say(rlm(query="q").answer)
"""
    process = in_python(script)
    wait_for_line(process, "second turn")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out.split() == ["again"], err


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_killed_host_leaves_no_process(
    in_python: Callable[..., Any], eventually: Callable[..., bool], name: str
) -> None:
    """Nor the processes that the code has started."""
    script = PRELUDE + """
source = '''
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(report(os.getpid(), child.pid))
import time; time.sleep(600)
'''
def report(worker, child):
    "Say the process ids."
    say("pids", worker, child)
with dspy.context(lm=ScriptedLM([code(source)])):
    RLM("query -> answer", tools=[report], interpreter_factory=environments.get("subprocess"))(query="q")
"""
    process = in_python(script)
    line = process.stdout.readline()
    pids = [int(word) for word in line.split()[1:]]
    assert len(pids) == 2 and all(map(alive, pids)), line + process.stderr.read()
    process.send_signal(getattr(signal, name))
    process.wait(timeout=20)
    gone = eventually(lambda: not any(map(alive, pids)))
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)
    assert gone


# ------------------------------------------------------------------------------------------------------ cancelled tasks


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(600)",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "block()",
        "llm_query('slow')",
        "import asyncio; await asyncio.sleep(600)",
    ],
)
def test_a_cancelled_task_leaves_no_process_and_keeps_the_trajectory(sandbox: Environment, source: str) -> None:
    async def block() -> None:
        """Wait."""
        await asyncio.sleep(600)

    sub = ScriptedLM(lambda call: Reply("late", delay=1.0))
    rlm = RLM("query -> answer", tools=[block], sub_lm=sub, interpreter_factory=sandbox)

    async def main() -> None:
        executing = asyncio.Event()

        def watch(event: Any, run: Any) -> None:
            if event.kind == "acted" and event.turn == 2:
                executing.set()

        with subscribe(watch):
            task = asyncio.create_task(rlm.acall(query="q"))
        await asyncio.wait_for(executing.wait(), 20)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert cancelled.value.trajectory[0]["output"] == "first"

    with dspy.context(lm=ScriptedLM([code("print('first')"), code(source)])):
        asyncio.run(main())


def test_runs_cancelled_at_any_moment_leave_nothing(sandbox: Environment, eventually: Callable[..., bool]) -> None:
    """While they wait for a sandbox, start it, ask, execute, call, extract and close; some are cancelled twice."""
    moments = random.Random(20)

    async def tool(n: int) -> int:
        """Take a moment."""
        await asyncio.sleep(0.001)
        return n

    def policy(call: Any) -> str:
        if "No more code can run" in call.prompt:
            return "[[ ## answer ## ]]\nx"
        return code("print(tool(1), llm_query_batched(['a', 'b']))")

    rlm = RLM(
        "query -> answer",
        tools=[tool],
        sub_lm=ScriptedLM(lambda call: Reply("s", delay=0.002)),
        interpreter_factory=sandbox,
        max_iters=2,
    )
    width = asyncio.Semaphore(8)

    async def one() -> None:
        async with width:
            task = asyncio.create_task(rlm.acall(query="q"))
            await asyncio.sleep(moments.random() * 0.2)
            task.cancel()
            if moments.random() < 0.3:
                await asyncio.sleep(moments.random() * 0.01)
                task.cancel()
            try:
                await task
            except asyncio.CancelledError as error:
                assert hasattr(error, "trajectory")

    async def main() -> None:
        await asyncio.gather(*(one() for _ in range(60)))

    with dspy.context(lm=ScriptedLM(policy)):
        asyncio.run(main())
        assert eventually(lambda: sessions.slots.taken == 0)
        assert rlm(query="again").answer == "x"


def test_wait_for_a_run_with_a_timeout(sandbox: Environment) -> None:
    rlm = RLM("query -> answer", interpreter_factory=sandbox)

    async def main() -> None:
        await asyncio.wait_for(rlm.acall(query="q"), timeout=0.5)

    with dspy.context(lm=ScriptedLM([code("import time; time.sleep(600)")])), pytest.raises(TimeoutError):
        asyncio.run(main())


def test_a_group_of_runs_one_of_which_fails(sandbox: Environment) -> None:
    """The others are cancelled by their task group, and their sandboxes are gone."""
    rlm = RLM("query -> answer", interpreter_factory=sandbox)
    broken = RLM("query -> answer", interpreter_factory=lambda: None)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(rlm.acall(query="q"))
            await asyncio.sleep(0.3)
            group.create_task(broken.acall(query="q"))

    lm = ScriptedLM(lambda call: code("import time; time.sleep(600)"))
    with dspy.context(lm=lm), pytest.raises(ExceptionGroup) as raised:
        asyncio.run(main())
    assert raised.group_contains(TypeError, match="must return a")


# ------------------------------------------------------------------------------------------------------ errors in tools


@pytest.mark.parametrize("is_async", [False, True])
def test_an_exception_in_a_tool_is_the_codes_to_handle(sandbox: Environment, is_async: bool) -> None:
    def broken(n: int) -> int:
        """Fail."""
        raise KeyError(f"no {n}")

    async def abroken(n: int) -> int:
        """Fail."""
        raise KeyError(f"no {n}")

    tool = dspy.Tool(abroken if is_async else broken, name="broken")
    lm = ScriptedLM(
        [
            code("try:\n    broken(1)\nexcept RuntimeError as error:\n    print('caught', error)"),
            code("broken(n=2)"),
            code("SUBMIT('x')"),
        ]
    )
    with dspy.context(lm=lm):
        prediction = RLM("query -> answer", tools=[tool], interpreter_factory=sandbox)(query="q")
    first, second, _ = prediction.trajectory
    assert first["output"].startswith("caught KeyError") and "no 1" in first["output"] and not first.error
    assert second.error and "no 2" in second["output"] and "broken(n=2)" in second["output"]
    assert prediction.answer == "x" and second.calls[0][2] is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_in_a_tool_ends_the_run_and_leaves_nothing(sandbox: Environment, error: type[BaseException]) -> None:
    def leave() -> None:
        """Exit."""
        raise error()

    rlm = RLM("query -> answer", tools=[leave], interpreter_factory=sandbox)
    lm = ScriptedLM([code("print('first')"), code("leave()"), code("SUBMIT('went on')")])
    with dspy.context(lm=lm):
        with pytest.raises(error) as raised:
            rlm(query="q")
        assert [turn["output"] for turn in raised.value.trajectory][:1] == ["first"]  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------- the worker is killed


def test_a_killed_worker_is_replaced_and_the_root_is_told(sandbox: Environment) -> None:
    lm = ScriptedLM(
        [
            code("import dspy\nmine = 1\nprint(dspy.Predict('q -> a')(q='?').a)"),
            code("import os, signal\nprint('last words')\nos.kill(os.getpid(), signal.SIGKILL)"),
            code("print(len(text))\nprint(dspy.Predict('q -> a')(q='?').a if 'dspy' in globals() else 'gone')"),
            code("import dspy\nprint(dspy.Predict('q -> a')(q='?').a)\nmine"),
            code("SUBMIT(text)"),
        ]
    )
    sub = ScriptedLM(lambda call: "[[ ## a ## ]]\nyes\n\n[[ ## completed ## ]]")
    with dspy.context(lm=lm):
        prediction = RLM("text -> answer", sub_lm=sub, interpreter_factory=sandbox)(text="the text")
    outputs = [turn["output"] for turn in prediction.trajectory]
    assert prediction.answer == "the text" and prediction.outcome == "submitted"
    assert outputs[0] == "yes"
    assert "text are set again; gone: mine" in outputs[1]
    assert prediction.trajectory[1].error and "mine" in prediction.trajectory[1].lost
    assert outputs[2].splitlines()[0] == "8"
    assert outputs[3].startswith("yes") and "NameError" in outputs[3]


def test_a_worker_killed_from_outside(sandbox: Environment) -> None:
    """As by the kernel, when memory is short: during a cell, and between two cells."""
    pids: list[int] = []

    def tell(pid: int) -> None:
        """Take the worker's process id."""
        pids.append(pid)

    def kill() -> None:
        """Kill the worker while it waits for this call."""
        os.kill(pids[-1], signal.SIGKILL)

    def policy(call: Any) -> str:
        if call.turn == 1:
            os.kill(pids[-1], signal.SIGKILL)
        return [
            code("import os\ntell(os.getpid())\nkept = 1"),
            code("print(text)"),
            code("tell(__import__('os').getpid())\nkill()"),
            code("print(text)"),
            code("SUBMIT(text)"),
        ][call.turn]

    rlm = RLM("text -> answer", tools=[tell, kill], interpreter_factory=sandbox)
    if os.environ.get("RLM_TEST_ENV", "subprocess") != "subprocess":
        pytest.skip("the worker's process id is another one in a sandbox")
    with dspy.context(lm=ScriptedLM(policy)):
        prediction = rlm(text="t")
    assert prediction.answer == "t" and prediction.outcome == "submitted"
    lost = [turn for turn in prediction.trajectory if turn.lost]
    assert len(lost) == 2 and all("kept" in turn["output"] or turn.number > 2 for turn in lost)


# ----------------------------------------------------------------------------------------------------------------- fork


def test_a_forked_child_can_run_and_the_parents_runs_go_on(in_python: Callable[..., Any]) -> None:
    """``os.fork`` in the middle of a run: the child makes a run of its own, the parent's session is unharmed."""
    script = PRELUDE + """
rlm = RLM("query -> answer", interpreter_factory=ENVIRONMENT)

def fork():
    "Fork; the child runs and leaves."
    pid = os.fork()
    if pid == 0:
        try:
            with dspy.context(lm=ScriptedLM([code("SUBMIT('child ' + query)")])):
                say(rlm(query="run").answer)
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]

parent = RLM("query -> answer", tools=[fork], interpreter_factory=ENVIRONMENT)
forks = code("print(fork())")
lm = ScriptedLM([code("kept = 'kept'"), forks, forks, code("SUBMIT('parent ' + kept)")])
with dspy.context(lm=lm):
    prediction = parent(query="q")
say(prediction.answer, [turn["output"] for turn in prediction.trajectory][1:3])
"""
    out, err = in_python(script).communicate(timeout=40)
    assert out.splitlines() == ["child run", "child run", "parent kept ['0', '0']"], err


def test_what_a_forked_child_collects_does_not_put_the_parents_event_loop_to_sleep(
    in_python: Callable[..., Any],
) -> None:
    script = PRELUDE + """
import gc, os
rlm = RLM("query -> answer", interpreter_factory=ENVIRONMENT)

def work(n):
    with dspy.context(lm=ScriptedLM([code("SUBMIT(query)")])):
        return rlm(query=f"q{n}").answer

say(work(0))
for way in ("collects", "exits"):
    if not (child := os.fork()):
        work(1)
        gc.collect()
        if way == "collects":
            os._exit(0)
        raise SystemExit(0)
    assert os.waitpid(child, 0)[1] == 0
    say(work(2))
"""
    out, err = in_python(script).communicate(timeout=60)
    assert out == "q0\nq2\nq2\n", out + err


def test_multiprocessing_with_fork(in_python: Callable[..., Any]) -> None:
    script = PRELUDE + """
import multiprocessing
rlm = RLM("query -> answer", interpreter_factory=ENVIRONMENT)

def work(n):
    with dspy.context(lm=ScriptedLM([code("SUBMIT(query)")])):
        return rlm(query=f"q{n}").answer

say(work(0), work(1))
with multiprocessing.get_context("fork").Pool(3) as processes:
    say(*processes.map(work, range(2, 8)))
say(work(8))
"""
    out, err = in_python(script).communicate(timeout=60)
    assert out.split() == [f"q{n}" for n in range(9)], err


# ------------------------------------------------------------------------------------------- a stop asked for by a user


def test_request_stop_from_another_thread(sandbox: Environment, eventually: Callable[..., bool]) -> None:
    """What the command line's first Ctrl-C does: stop where it is, and give the best answer."""
    runs: list[Any] = []

    def stop(run: Any) -> None:
        eventually(lambda: "begun" in run.session.partial_output)
        run.request_stop()

    def watch(event: Any, run: Any) -> None:
        if event.kind == "acted" and event.turn == 2:
            runs.append(run)
            threading.Thread(target=stop, args=(run,)).start()

    answer = "[[ ## answer ## ]]\nbest so far\n\n[[ ## completed ## ]]"
    lm = ScriptedLM([code("print(1)"), code("print('begun', flush=True)\nimport time; time.sleep(600)"), answer])
    with dspy.context(lm=lm), subscribe(watch):
        prediction = RLM("query -> answer", interpreter_factory=sandbox)(query="q")
    assert prediction.answer == "best so far"
    assert prediction.outcome == "extracted" and prediction.outcome.limit == "interrupted"
    assert prediction.trajectory[1]["output"].startswith("begun")
    assert prediction.trajectory.events[-1].seconds < 60
    runs[0].request_stop()  # after the end it does nothing
