"""Ctrl-C ends whatever the main thread waits for, also where the system's own wake-up does not reach it."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from rlm_dspy._signals import all_ended, joined, result_of, until

pytestmark = pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals are masked by thread")

# A signal that another thread of the process takes is one that came right before the main thread's wait: the handler is
# due, and nothing breaks the wait off.
SCRIPT = """
import asyncio, os, signal, sys, threading
import dspy
from rlm_dspy import RLM
from rlm_dspy.testing import Reply, ScriptedLM

taken = threading.Event()

def interrupt(call):
    if not taken.is_set():
        taken.set()
        os.kill(os.getpid(), signal.SIGINT)
    return Reply("never", delay=600)

threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
lm = ScriptedLM(interrupt)
rlm = RLM("text -> answer", interpreter="subprocess")
examples = [dspy.Example(text=str(n), answer="x").with_inputs("text") for n in range(3)]
metric = lambda example, prediction, *_: 0.0

async def in_a_loop():
    rlm(text="one")

try:
    with dspy.context(lm=lm):
        BODY
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

WAITS = {
    "a call": 'rlm(text="one")',
    "a call in a notebook": "asyncio.new_event_loop().run_until_complete(in_a_loop())",
    "a stream": 'list(rlm.stream(text="one"))',
    "attempts": (
        "from rlm_dspy.optimizers import BootstrapTrajectories as B; "
        "B(metric=metric, num_threads=2).compile(rlm, trainset=examples)"
    ),
    "gepa": (
        "from rlm_dspy.optimizers import RLMGEPA as G; "
        "G(metric, reflection_lm=lm, max_metric_calls=9, num_threads=2)"
        ".compile(rlm, trainset=examples, valset=examples)"
    ),
    "rows": (
        "from rlm_dspy.evaluation import mapping, rows; "
        "open('rows.jsonl', 'w').write('{\"text\": 1}'); "
        "mapping.map_rows(rlm, rows.read('rows.jsonl'), 'out.jsonl', threads=2)"
    ),
}


@pytest.mark.parametrize("body", WAITS.values(), ids=WAITS)
def test_ctrl_c_is_noticed_where_it_does_not_wake_the_wait(body: str, in_python: Callable[..., Any]) -> None:
    process: subprocess.Popen[str] = in_python(SCRIPT.replace("BODY", body))
    out, err = process.communicate(timeout=60)
    assert out.split() == ["interrupted"], err


def test_waits_give_what_the_plain_ones_give() -> None:
    done: Future[int] = Future()
    failed: Future[int] = Future()
    event, thread = threading.Event(), threading.Thread(target=done.set_result, args=(7,))
    thread.start()
    joined(thread)
    assert not thread.is_alive() and result_of(done) == 7
    # An error of the work's own is not taken for the end of a wait.
    failed.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        result_of(failed)
    dropped: Future[int] = Future()
    dropped.cancel()
    all_ended([done, failed, dropped])
    event.set()
    until(event.wait)
