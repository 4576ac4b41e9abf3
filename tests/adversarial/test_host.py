"""Hosts in a bad way: descriptors closed or used up, tools that misbehave, sessions that wait for one another."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, environments
from rlm_dspy.environments import bubblewrap, landlock, pool, sessions
from rlm_dspy.environments.base import Environment
from rlm_dspy.environments.interpreter import Interpreter
from rlm_dspy.testing import ScriptedLM, code

LAYERS = [
    pytest.param("bubblewrap", marks=pytest.mark.skipif(bubblewrap.find() is None, reason="no bubblewrap here")),
    pytest.param("landlock", marks=pytest.mark.skipif(landlock.abi() < 1, reason="no Landlock in this kernel")),
]
WITHOUT_STANDARD_STREAMS = """
import os, sys
from rlm_dspy import environments
from rlm_dspy._aio import run_sync
async def nothing(): pass
run_sync(nothing())  # The event loop has its descriptors already.
out = os.dup(1)
for descriptor in (0, 1, 2):
    os.close(descriptor)
try:
    with environments.local(site_packages=False, layer=sys.argv[1])() as place:
        text = place.execute("print('fine')")
except Exception as error:
    text = repr(error)
os.write(out, text.encode())
"""
WITHOUT_DESCRIPTORS = """
import os, resource, sys, time
from rlm_dspy import environments, errors
from rlm_dspy.environments import pool
place = environments.local(site_packages=False, layer=sys.argv[1])
with place() as first:
    first.execute("1")
count = lambda: len(os.listdir("/proc/self/fd"))
before, hard = count(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
failed = 0
for room in range(24):
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, hard))
    try:
        with place() as other:
            other.execute("1")
    except errors.SandboxUnavailableError:
        failed += 1
    except OSError:
        failed += 1  # Python itself could not open a file.
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
deadline = time.monotonic() + 20
while count() > before and time.monotonic() < deadline:
    pool.close()  # Again: a spare may be starting.
    time.sleep(0.01)
print(failed > 3, failed < 24, count() - before)
"""


@pytest.mark.parametrize("layer", LAYERS)
def test_a_host_without_standard_streams(layer: str, in_python: Callable[..., subprocess.Popen[str]]) -> None:
    out, err = in_python(WITHOUT_STANDARD_STREAMS, layer).communicate(timeout=60)
    assert out == "fine\n", err


@pytest.mark.parametrize("layer", LAYERS)
def test_a_start_that_fails_for_want_of_descriptors_keeps_none(
    layer: str, in_python: Callable[..., subprocess.Popen[str]]
) -> None:
    out, err = in_python(WITHOUT_DESCRIPTORS, layer).communicate(timeout=60)
    assert out == "True True 0\n", err


def test_runs_in_threads_of_a_tool_do_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    monkeypatch.setenv(sessions.VARIABLE, "2")
    monkeypatch.setattr(sessions, "STALL_SECONDS", 0.2)
    place = environments.local(timeout=20, site_packages=False)
    child_lm = ScriptedLM(lambda call: code("SUBMIT('child')"))
    child = RLM("q -> answer: str", interpreter=place)

    def ask(text: str) -> str:
        with dspy.context(lm=child_lm):
            return child(q=text).answer

    def tool(text: str) -> list[str]:
        """Ask two children at once."""
        # Threads without the context that says whose session this is.
        with ThreadPoolExecutor(2) as pool_:
            return list(pool_.map(ask, [text, text]))

    rlm = RLM("q -> answer: list[str]", tools=[tool], interpreter=place, max_seconds=50)

    async def main() -> list[Any]:
        return await asyncio.gather(*(rlm.aforward(q="x") for _ in range(5)))

    try:
        with dspy.context(lm=ScriptedLM(lambda call: code("SUBMIT(tool('x'))"))):
            predictions = asyncio.run(main())
    finally:
        pool.close()
    assert [(p.outcome, p.answer) for p in predictions] == [("submitted", ["child", "child"])] * 5
    assert sessions.slots.taken == sessions.slots.waiting == 0


def test_the_limit_of_sessions_holds_while_any_of_them_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sessions.VARIABLE, "2")
    monkeypatch.setattr(sessions, "STALL_SECONDS", 0.0)
    slots = sessions.Slots()
    first, second = slots.request().result(), slots.request().result()
    line = [slots.request() for _ in range(3)]
    slots.note_calls(first, 1)
    slots.relieve()
    assert not any(future.done() for future in line)
    slots.note_calls(second, 1)
    slots.relieve()
    # The newest: an inner session asked after those in line.
    assert [future.done() for future in line] == [False, False, True]
    slots.relieve()
    assert slots.taken == 3
    line[2].result().release()
    assert [future.done() for future in line] == [False, True, True]
    slots.note_calls(second, -1)
    for lease in (line[1].result(), first, second):
        lease.release()
    line[0].result(timeout=0).release()
    assert slots.taken == slots.waiting == 0


class Broken(list):  # type: ignore[type-arg]
    """A list that cannot be read."""

    def __iter__(self) -> Any:
        raise KeyError("broken")


def test_a_tool_that_returns_what_cannot_be_read_fails_alone(sandbox: Environment) -> None:
    def tool() -> Any:
        """Something."""
        return Broken()

    rlm = RLM("q -> answer: str", tools=[tool], interpreter=sandbox)
    cell = "kept = 1\ntry:\n    tool()\nexcept TypeError as error:\n    SUBMIT(f'{kept} {error}')"
    with dspy.context(lm=ScriptedLM([code(cell)])):
        answer = rlm(q="x").answer
    assert answer.startswith("1 tool() returned: ") and "KeyError" in answer


def test_errors_of_an_interpreters_tools_carry_no_secrets(
    monkeypatch: pytest.MonkeyPatch, sandbox: Environment
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "value-of-the-secret")

    def value() -> None:
        raise ValueError("refused: value-of-the-secret")

    def other() -> None:
        raise OSError("refused: value-of-the-secret")

    with Interpreter(sandbox, tools={"value": value, "other": other}) as place:
        for name in ("value", "other"):
            with pytest.raises(dspy.CodeExecutionError, match=r"refused: \[hidden\]") as caught:
                place.execute(f"{name}()")
            assert "value-of-the-secret" not in str(caught.value)
