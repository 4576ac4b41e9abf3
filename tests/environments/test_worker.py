"""The worker and its channel: start, delivery to other Pythons, caps, death, and workers that attack the host."""

# ruff: noqa: E501
from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy._aio import run_sync
from rlm_dspy.environments import channel as channels
from rlm_dspy.environments.base import Description, Environment, Transport
from rlm_dspy.environments.cells import Output
from rlm_dspy.environments.channel import ChannelClosed, connect
from rlm_dspy.environments.interpreter import Interpreter
from rlm_dspy.environments.program import BOOTSTRAP, worker_program
from rlm_dspy.environments.spawn import spawn
from rlm_dspy.environments.subprocess_env import Subprocess
from rlm_dspy.errors import SandboxUnavailableError

pytestmark = pytest.mark.usefixtures("no_leaks")


def pythons() -> list[str]:
    """Other Pythons of this machine, 3.8 and later, that start."""
    homes = [*Path.home().glob(".pyenv/versions/3.*/bin/python"), *(shutil.which(f"python3.{m}") for m in range(8, 16))]
    found = {}
    for path in filter(None, homes):
        code = "import sys; print(*sys.version_info[:2])"
        answer = subprocess.run([str(path), "-I", "-c", code], capture_output=True, text=True, check=False)
        if (
            answer.returncode == 0
            and (3, 8) <= (version := tuple(map(int, answer.stdout.split()))) != sys.version_info[:2]
        ):
            found.setdefault(version, str(path))
    return [found[version] for version in sorted(found)]


class Attacker(Environment):
    """Runs a program of the test in place of the worker; it may use the real one as ``worker()``."""

    name = "attacker"

    def __init__(self, program: str, **limits: Any) -> None:
        super().__init__(**limits)
        self.program = program

    def open(self) -> Transport:
        prologue = (
            "import os, sys, json, time, threading\n"
            "def send(line): os.write(1, line.encode() + b'\\n')\n"
            "def done(n, body=None): send(json.dumps({'op': 'done', 'id': n, 'body': body}))\n"
            "def lines():\n"
            "    data = b''\n"
            "    while True:\n"
            "        while b'\\n' in data:\n"
            "            line, data = data.split(b'\\n', 1)\n"
            "            if line.startswith(b'{'):\n"
            "                try: yield json.loads(line)\n"
            "                except ValueError: pass\n"
            "        more = os.read(0, 1 << 20)\n"
            "        if not more: os._exit(0)\n"
            "        data += more\n"
            'READY = \'{"op": "ready", "python": "3"}\'\n'
        )
        return spawn([sys.executable, "-I", "-u", "-c", prologue + self.program], env={})

    def describe(self) -> Description:
        return Description(self.name)


def attacked(on_exec: str, **limits: Any) -> Interpreter:
    """A session whose worker is ready, and answers ``exec`` with the program ``on_exec`` (``n`` is the request's id)."""
    body = "\n".join("        " + line for line in on_exec.splitlines())
    program = f"send(READY)\nfor frame in lines():\n    n = frame.get('id')\n    if frame['op'] == 'exec':\n{body}\n    elif n: done(n)"
    return Interpreter(Attacker(program, **limits))


async def use(session: Any, *cells: str, **options: Any) -> list[Any]:
    try:
        return [await session.run(cell, **options) for cell in cells]
    finally:
        await session.close()


# ------------------------------------------------------------------------------------------------- start


@pytest.mark.parametrize("python", [sys.executable, *pythons()])
def test_other_pythons(python: str) -> None:
    """Delivered as source, the worker runs on any Python from 3.8 on."""

    async def check() -> None:
        session = Interpreter(Subprocess(python=python, timeout=30))

        async def double(x: Any) -> Any:
            return [x, x]

        await session.set({"text": "\ud800é", "value": {1: (2, {3})}})
        result = await session.run(
            "print(text == '\\ud800é', value)\nawait __import__('asyncio').sleep(0)\ndouble(text)[1] == text",
            {"double": double},
        )
        assert (result.error, result.stdout, result.value) == (None, "True {1: (2, {3})}\n", "True")
        result = await session.run("def f():\n    1/0\nf()")
        assert result.error and "    1/0" in result.error.traceback and "<rlm" not in result.error.traceback
        result = await session.run("while True: pass", timeout=0.2)
        assert result.error and result.error.kind == "timeout" and not result.lost
        assert (await session.run("SUBMIT(value)")).submission.args == ({1: (2, {3})},)
        await session.close()

    run_sync(check())


def test_the_start_imports_little() -> None:
    """What makes a start slow is imported when it is needed."""
    result = run_sync(
        use(
            Subprocess()(),
            "import sys\nsorted(set(sys.modules) & {'asyncio', 'ctypes', 'numpy', 'ast', 'inspect', 'traceback', 'typing', 'subprocess', 'pickle', 'socket'})",
        )
    )
    assert result[0].value == "[]"


def test_the_program_fits_both_ways() -> None:
    for same in (True, False):
        program = worker_program(same)
        assert program[:1] == (b"m" if same else b"s") and int(program[1:13]) == len(program) - 13
        assert worker_program(same) is program
    assert len(BOOTSTRAP) < 1000 and BOOTSTRAP.isascii()


@pytest.mark.parametrize(
    "program", ["sys.exit(3)", "print('Traceback: no module'); sys.exit(1)", "os.kill(os.getpid(), 9)", "send('[]')"]
)
def test_a_worker_that_does_not_start(program: str) -> None:
    with pytest.raises(SandboxUnavailableError, match="attacker"):
        connect(Attacker(program))


def test_the_reason_is_told() -> None:
    with pytest.raises(SandboxUnavailableError, match=r"status 3.*libmissing"):
        connect(Attacker("os.write(2, b'cannot load libmissing.so'); sys.exit(3)"))


def test_a_silent_worker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "START_SECONDS", 0.3)
    with pytest.raises(SandboxUnavailableError, match="no answer within"):
        connect(Attacker("time.sleep(1000)"))


# ------------------------------------------------------------------------------------------------- attacks


@pytest.mark.parametrize(
    "attack",
    [
        "send('garbage')", "send('[1]')", "os.write(1, b'\\0' * 100 + b'\\n')", "done(n + 1000)", "done(n); done(n)", "send('{\"op\": \"x\", \"id\": 1}')",
        "send('{\"op\": \"call\", \"id\": 1, \"name\": 5, \"body\": [[], {}]}')", "send('{\"op\": \"call\", \"id\": 1, \"name\": \"f\", \"body\": 5}')",
        "send('{\"op\": \"call\", \"id\": 1, \"name\": \"f\", \"body\": [[], {\"$\": \"dict\", \"v\": [[1, 2]]}]}')", "send('{\"op\": \"done\", \"id\": \"x\"}')",
        "send(json.dumps({'op': 'done', 'id': n, 'body': {'$': 'range', 'v': [0, 10**18, 1]}}))", "send('{\"op\": \"done\", \"id\": %d, \"blobs\": [10000000000]}' % n)",
        "send('{\"op\": \"done\", \"id\": %d, \"body\": %s}' % (n, '[' * 100000))", "os.write(1, b'x' * 10_000); os._exit(0)", "send(READY)",
        "while True: os.write(1, b'x' * 1_000_000)",
    ],
)  # fmt: skip
def test_a_breach_ends_the_worker_not_the_host(attack: str) -> None:
    """Whatever comes that is no frame: the cell ends in an error that says so, within a time."""
    start = time.monotonic()
    session = attacked(attack, timeout=20)
    (result,) = run_sync(use(session, "1"))
    if result.error is not None:
        assert result.error.type == "SandboxDied" and (
            "protocol" in result.error.message or "gone" in result.error.message
        )
    assert time.monotonic() - start < 20


def test_nonsense_in_a_result_is_no_harm() -> None:
    body = "{'stdout': 5, 'value': [1], 'error': {'type': 10**4000, 'kind': 7}, 'seconds': 'x', 'names': [[], 1, 'ok'], 'object': 1}"
    body = body.replace("10**4000", "[None]")
    (result,) = run_sync(use(attacked(f"done(n, {body})"), "1"))
    assert (result.stdout, result.value, result.seconds) == ("", None, 0.0)
    assert result.error is not None and result.error.kind == "runtime"
    (result,) = run_sync(use(attacked("done(n, {'stdout': 'x' * 9_000_000})", max_output=1000), "1"))
    assert len(result.stdout) < 2000


def test_a_forged_submit_is_a_submit() -> None:
    attack = "send(json.dumps({'op': 'submit', 'id': n, 'body': [['forged'], {}]}))\nsend(json.dumps({'op': 'submit', 'id': n, 'body': [['second'], {}]}))\nsend(json.dumps({'op': 'submit', 'id': n - 1, 'body': [['other'], {}]}))\ndone(n)"
    (result,) = run_sync(use(attacked(attack), "1"))
    assert result.submission is not None and result.submission.args == ("forged",)


def test_unanswered_calls_are_bounded() -> None:
    """A worker that floods the host with calls and reads no answer is held up, and stopped by the time limit."""
    open_calls = most = 0

    async def slow() -> str:
        nonlocal open_calls, most
        open_calls += 1
        most = max(most, open_calls)
        try:
            await asyncio.sleep(0.001)
            return "x" * 10_000
        finally:
            open_calls -= 1

    flood = 'frame = b\'\'.join(b\'{"op": "call", "id": %d, "name": "slow", "body": [[], {}]}\\n\' % i for i in range(10_000))\nwhile True: os.write(1, frame)'

    async def check() -> Any:
        session = attacked(flood, timeout=2)
        start = time.monotonic()
        try:
            result = await session.run("1", {"slow": slow})
        finally:
            await session.close()
        return result, time.monotonic() - start

    result, seconds = run_sync(check())
    assert result.error is not None and result.error.kind == "timeout" and seconds < 20
    assert 0 < most <= channels.MAX_CALLS


def test_a_worker_that_does_not_read_holds_nothing_up() -> None:
    """100 MB to a worker that never reads: the event loop stays free, and closing works."""

    async def check() -> None:
        session = Interpreter(Attacker("send(READY)\ntime.sleep(1000)"))
        await session.open()
        task = asyncio.ensure_future(session.set({"big": "x" * 100_000_000}))
        longest, last = 0.0, time.perf_counter()
        for _ in range(200):
            await asyncio.sleep(0.001)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        assert not task.done() and longest < 5  # writing it would take for ever
        await session.close()
        with pytest.raises(dspy.CodeInterpreterError, match="closed"):
            await task

    run_sync(check())


def test_small_requests_to_a_worker_that_does_not_read_hold_nothing_up() -> None:
    """Small frames are written by whoever posts them; once the pipe is full, that must not be noticed."""
    take_the_program = "data = b''\nwhile b'\"op\":\"hello\"' not in data: data += os.read(0, 1 << 20)"
    channel = connect(Attacker(f"{take_the_program}\nsend(READY)\ntime.sleep(1000)"))
    answers: list[Any] = []

    def ask() -> None:
        answers.extend(channel.request("exec", {"code": "x" * 1_900}) for _ in range(2_000))

    asking = threading.Thread(target=ask, daemon=True)
    try:
        before = channel.sent
        asking.start()
        asking.join(60)
        assert not asking.is_alive() and before < channel.sent < 2_000 * 1_900
    finally:
        channel.close()
    assert len(answers) == 2_000
    assert all(isinstance(answer.exception(timeout=10), ChannelClosed) for answer in answers)


def test_requests_arrive_in_the_order_in_which_they_were_made() -> None:
    """Whichever way each is written: at once, or, being long, by the writer thread."""
    channel = connect(Attacker("send(READY)\nfor frame in lines():\n    if frame.get('id'): done(frame['id'], frame['id'])"))
    order: list[int] = []
    try:
        answers = []
        for number in range(300):
            answers.append(channel.request("exec", {"code": "x" * (50_000 if number % 7 == 0 else 10)}))
            answers[-1].add_done_callback(lambda done: order.append(done.result()))
        for answer in answers:
            answer.result(timeout=30)
    finally:
        channel.close()
    assert order == sorted(order) and len(order) == 300


def test_a_cell_can_be_interrupted_from_a_signal_handler() -> None:
    """Which runs in the middle of whatever the main thread does, sending included."""

    class Struck:
        def __init__(self, transport: Transport) -> None:
            self.transport = transport
            self.handler: Any = None

        def __getattr__(self, name: str) -> Any:
            return getattr(self.transport, name)

        def write_now(self, data: bytes) -> bool:
            handler, self.handler = self.handler, None
            if handler is not None:
                handler()
            return bool(self.transport.write_now(data))  # type: ignore[attr-defined]

    class Striking(Subprocess):
        def open(self) -> Transport:
            self.transport = Struck(super().open())
            return self.transport

    environment = Striking()
    channel = connect(environment)
    answers: list[Any] = []

    def ask() -> None:
        number = channel.new_id()
        environment.transport.handler = lambda: channel.interrupt(number)
        answers.append(channel.request("exec", {"code": "import time; time.sleep(600)"}, number))

    asking = threading.Thread(target=ask, daemon=True)
    try:
        asking.start()
        asking.join(20)
        assert not asking.is_alive()
        assert answers[0].result(timeout=20)["error"]["type"] == "KeyboardInterrupt"
        assert channel.request("get", []).result(timeout=20) == {}
    finally:
        channel.close()


def test_small_values_cross_whatever_is_in_them() -> None:
    """Also text that is longer on the stream than in memory, as lone surrogates make it."""
    texts = st.builds(str.__mul__, st.text(st.sampled_from('a\0é\n"\ud800\udfff\U0001f600'), max_size=4), st.integers(1, 700))
    atoms = st.none() | st.booleans() | st.floats() | texts

    async def echo(value: Any) -> Any:
        return value

    with Subprocess()() as interpreter:

        @settings(max_examples=60, deadline=None)
        @given(atoms, st.lists(atoms, max_size=5))
        def check(value: Any, values: list[Any]) -> None:
            async def there_and_back() -> tuple[Any, Any]:
                await interpreter.set({"value": value})
                result = await interpreter.run("SUBMIT(value, echo(value))", {"echo": echo})
                assert result.submission is not None, result.error
                await interpreter.set({f"v{n}": v for n, v in enumerate(values)})
                back = await interpreter.get([f"v{n}" for n in range(len(values))])
                return result.submission.args, back

            args, back = run_sync(there_and_back())
            assert repr(args) == repr((value, value))
            assert repr(list(back.values())) == repr(values)

        check()


# ------------------------------------------------------------------------------------------------- memory, death


def peak_mb(pid: int | str) -> int:
    return next(
        int(line.split()[1]) // 1024 for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in line
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's memory accounting")
@pytest.mark.parametrize(
    "text",
    ["x" * 60_000_000, "é" * 60_000_000, "中" * 30_000_000, "a" * 15_000_000 + "\N{GRINNING FACE}"],
    ids=["ascii", "latin", "cjk", "emoji"],
)
def test_a_big_value_costs_at_most_four_times_its_size(text: str) -> None:
    async def check() -> None:
        session = Subprocess()()
        before = (
            int(
                (await session.run("import os, resource\nresource.getrusage(resource.RUSAGE_SELF).ru_maxrss")).value
                or 0
            )
            // 1024
        )
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            pytest.skip("memory accounting cannot be reset here")
        host = peak_mb("self")
        await session.set({"big": text})
        grown = peak_mb("self") - host
        after = int((await session.run("resource.getrusage(resource.RUSAGE_SELF).ru_maxrss")).value or 0) // 1024
        await session.close()
        assert grown + after - before <= 4 * sys.getsizeof(text) / 2**20, (grown, after - before)

    run_sync(check())


def test_a_killed_worker_fails_what_is_pending() -> None:
    channel = connect(Subprocess())
    pid = int(run_sync(asyncio_result(channel, "exec", {"code": "import os; os.getpid()"}))["value"])
    future = channel.request("exec", {"code": "import time; time.sleep(1000)"})
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ChannelClosed, match="SIGKILL"):
        future.result(timeout=20)
    assert not channel.alive
    with pytest.raises(ChannelClosed):
        channel.request("vars").result(timeout=20)
    channel.close()


async def asyncio_result(channel: Any, op: str, body: Any) -> Any:
    return await asyncio.wrap_future(channel.request(op, body))


def test_the_worker_goes_with_the_channel(eventually: Any) -> None:
    """EOF on the channel ends the worker and its children, whatever the main thread does."""
    channel = connect(Subprocess())
    code = "import subprocess, sys, os\np = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n[os.getpid(), p.pid]"
    pids = eval(run_sync(asyncio_result(channel, "exec", {"code": code}))["value"])
    channel.request("exec", {"code": "while True: pass"})
    channel.close()
    assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def test_output_while_a_child_keeps_printing() -> None:
    """A child that never stops printing does not keep the cell from ending."""
    code = "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'while True: print(\"spam\" * 100)'])\nprint('mine')"
    first, second = run_sync(use(Subprocess(timeout=20)(), code, "p.kill(); p.wait()"))
    assert first.error is None and "mine" in first.stdout and second.error is None


def test_a_background_thread_may_go_on() -> None:
    """Calls of a thread that outlives its cell wait for the next cell."""
    seen = []

    async def note(x: int) -> int:
        seen.append(x)
        return x

    async def check() -> None:
        session = Subprocess(timeout=20)()
        code = "import threading\ngo = threading.Event()\ndef work():\n    go.wait()\n    out.append(note(1))\nout = []\nt = threading.Thread(target=work); t.start()"
        assert (await session.run(code, {"note": note})).error is None
        assert (await session.run("go.set()", {"note": note})).error is None
        result = await session.run("t.join(); out", {"note": note})
        assert result.value == "[1]" and seen == [1], result
        await session.close()

    run_sync(check())


def test_an_interrupt_that_overtakes_its_cell_still_counts() -> None:
    channel = connect(Subprocess())
    try:
        number = channel.new_id()
        channel.interrupt(number)
        answer = channel.request("exec", {"code": "import time\ntime.sleep(600)"}, number)
        assert answer.result(timeout=30)["error"]["kind"] == "timeout"
        # It counts for that cell only.
        again = channel.request("exec", {"code": "1 + 1"})
        assert again.result(timeout=30)["value"] == "2"
    finally:
        channel.close()


def test_forged_reports_of_output_cost_the_host_no_more_than_the_cap() -> None:
    """``output`` frames are only as true as the worker; the host keeps one of them, capped."""
    channel = connect(Subprocess(max_output=1000))
    try:
        number = channel.new_id()
        channel.activate(number, lambda call: None, lambda args, kwargs: None)
        forge = (
            "import gc\n"
            "worker = next(o for o in gc.get_objects() if type(o).__name__ == 'Worker')\n"
            "for other in (worker._running, 10**9, -1):\n"
            "    worker.send({'op': 'output', 'id': other}, 'x' * 5_000_000)\n"
        )
        assert channel.request("exec", {"code": forge}, number).result(timeout=30)["error"] is None
        assert 0 < len(channel.printed) < 1100
    finally:
        channel.close()


def test_whoever_reports_output_is_woken_once_for_all_that_was_written() -> None:
    output = Output(1000)
    assert not output.written.acquire(blocking=False)
    output.write("a")
    output.write("b")
    assert output.written.acquire(blocking=False) and output.take() == "ab"
    assert not output.written.acquire(blocking=False)
    # Locked by the interpreter itself, so that an interrupt finds no Python code to strike in.
    assert type(output.written) is type(threading.Lock())


def test_an_interrupt_that_comes_as_a_cell_begins_to_sleep_strikes() -> None:
    """Python looks for signals between its own steps: one right before a system call would be noticed at its end."""

    async def check() -> None:
        session = Subprocess(timeout=20)()
        await session.run("kept = 1")
        for step in range(1000):
            cell = asyncio.ensure_future(session.run("import time; time.sleep(600)"))
            await asyncio.sleep(0)
            until = time.perf_counter() + step % 100 * 1e-5
            while time.perf_counter() < until:
                pass
            session.interrupt()
            result = await cell
            assert result.error.message == "the cell was interrupted" and not result.lost
        assert (await session.get(["kept"])) == {"kept": 1}
        await session.close()

    run_sync(check())
