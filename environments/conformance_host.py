"""Conformance checks: host functions, SUBMIT, values, limits, loss."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import decimal
import random
import time
from typing import Any

from rlm_dspy.environments.conformance_base import back, check, method, ok, prints


@check()
async def host_functions_take_arguments(session: Any) -> None:
    """Positional and keyword, in and out of functions; they have a name and a doc."""

    async def tool(a: int, b: int = 2) -> dict[str, int]:
        """Adds nothing."""
        return {"a": a, "b": b}

    result = await ok(session, "[tool(1), tool(1, 3), tool(b=4, a=5)], tool.__name__", {"tool": tool})
    assert result.value == "([{'a': 1, 'b': 2}, {'a': 1, 'b': 3}, {'a': 5, 'b': 4}], 'tool')", result.value


@check()
async def host_errors_are_raised_at_the_call(session: Any) -> None:
    """A host function's exception can be caught; its text is there."""

    async def tool(kind: str) -> None:
        raise {"value": ValueError, "key": KeyError}[kind]("what went wrong")

    await prints(
        session,
        """
        for kind in ("value", "key"):
            try:
                tool(kind)
            except Exception as e:
                print(e)
        """,
        "what went wrong\nKeyError: 'what went wrong'\n",
        {"tool": tool},
    )


@check()
async def host_calls_overlap(session: Any) -> None:
    """Calls from threads run at once: 40 of them, each waiting for all."""
    waiting = 0
    all_here = asyncio.Event()

    async def meet(i: int) -> int:
        nonlocal waiting
        waiting += 1
        if waiting == 40:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 20)
        return i * i

    result = await ok(
        session,
        """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(40) as p:
            r = list(p.map(meet, range(40)))
        sum(r)
        """,
        {"meet": meet},
    )
    assert result.value == str(sum(i * i for i in range(40))), result.value


@check()
async def host_calls_work_under_await(session: Any) -> None:
    """In threads of the loop, which makes them awaitable."""

    async def tool(i: int) -> int:
        await asyncio.sleep(0.001)
        return -i

    # Not asyncio.to_thread, which Python 3.8 lacks.
    code = "import asyncio\nloop = asyncio.get_running_loop()\n"
    code += "await asyncio.gather(*[loop.run_in_executor(None, tool, i) for i in range(5)])"
    result = await ok(session, code, {"tool": tool})
    assert result.value == "[0, -1, -2, -3, -4]", result.value


@check("interrupt")
async def waiting_for_the_host_is_not_computing(session: Any) -> None:
    """The time limit does not count time spent in host calls; a result says how much that was."""

    async def slow() -> str:
        await asyncio.sleep(0.6)
        return "done"

    result = await ok(session, "slow()", {"slow": slow}, timeout=0.3)
    assert result.value == "'done'" and result.host_seconds > 0.5


# ------------------------------------------------------------------------------------------------- SUBMIT


@check()
async def submit_ends_the_cell(session: Any) -> None:
    """With what was printed before it; code after it does not run, ``except Exception`` does not catch it."""
    result = await session.run("print('p')\ntry:\n    SUBMIT(1, b=[2])\nexcept Exception:\n    pass\nafter = 1")
    assert result.submission is not None and result.error is None
    assert (result.submission.args, dict(result.submission.kwargs), result.stdout) == ((1,), {"b": [2]}, "p\n")
    await prints(session, "print('after' in globals())", "False\n")


@check()
async def submit_cannot_be_swallowed(session: Any) -> None:
    """A bare ``except`` around it, or a thread that calls it, does not lose the answer."""
    result = await session.run("try:\n    SUBMIT('kept')\nexcept:\n    pass\n1/0")
    assert result.submission is not None and result.submission.args == ("kept",) and result.error is None
    result = await session.run("async def f(): SUBMIT(5)\nimport asyncio\nawait asyncio.gather(f())")
    assert result.submission is not None and result.submission.args == (5,)


@check("values")
async def values_that_cannot_cross_are_the_codes_error(session: Any) -> None:
    """A TypeError at the call, naming the type; the session goes on."""

    async def tool(x: Any) -> Any:
        return x

    for code in ("SUBMIT(object())", "tool(i for i in ())"):
        result = await session.run(code, {"tool": tool})
        assert result.error is not None and result.error.type == "TypeError" and result.submission is None
        assert "cannot cross" in result.error.message and (
            "object" in result.error.message or "generator" in result.error.message
        )
    result = await session.run("x = []\nx.append(x)\nSUBMIT(x)")
    assert result.error is not None and result.error.type == "ValueError", result
    await prints(session, "print('alive')", "alive\n")


# ------------------------------------------------------------------------------------------------- values

HOSTILE_TEXTS = (
    "",
    "'\"{}%s\\ \\n {0} {{x}} $",
    "\0 nul \x00\x01",
    "a\r\nb\rc\n",
    "\ud800 \udfff lone",
    "\ud83d\ude00",
    "\N{GRINNING FACE} é 中 \u2028 \ufeff",
    '{"op": "done", "id": 1}\n',
    "'''\"\"\"```python\nSUBMIT(1)\n```",
    "\x1b[31m\x07\x7f",
)
"""Texts that break escaping, framing or encoding somewhere."""


@check("values")
async def hostile_text_crosses_both_ways(session: Any) -> None:
    """Quotes, braces, NUL, CRLF, lone surrogates, text that looks like the protocol."""
    generator = random.Random(0)
    texts = [*HOSTILE_TEXTS, "".join(chr(generator.randrange(0x110000)) for _ in range(100_000))]
    await session.set({"texts": texts, **{f"t{i}": text for i, text in enumerate(texts)}})
    assert await back(session, "texts") == texts

    async def echo(text: str) -> str:
        assert text == texts[len(seen)]
        seen.append(text)
        return text

    seen: list[str] = []
    await ok(session, "assert [echo(t) for t in texts] == texts", {"echo": echo})
    assert seen == texts
    result = await ok(session, f"print(t4, end='')\nassert t4 == {texts[4]!a}")
    assert result.stdout == texts[4]
    result = await session.run(f"raise ValueError({texts[4]!a})")
    assert result.error is not None and result.error.message == texts[4]


@check("values")
async def big_values_cross_both_ways(session: Any) -> None:
    """30 MB on one line, of three kinds of text; 300 000 lines in a list; a long byte string."""
    for text in ("x" * 30_000_000, "é\0" * 15_000_000, "\ud800中\N{GRINNING FACE}" * 3_000_000):
        await session.set({"big": text})
        assert await back(session, "big") == text
    lines = [f"line {i} é" for i in range(300_000)]
    data = bytes(range(256)) * 40_000
    await session.set({"lines": lines, "data": data})
    assert await back(session, "lines") == lines and await back(session, "data") == data


@check("values")
async def values_keep_their_type(session: Any) -> None:
    """What goes in comes out equal and of the same type."""
    values: list[Any] = [
        None, True, 0, -1, 2**100, -(7**5000), 1.5, -0.0, float("inf"), 1 + 2j, b"\0\xff", bytearray(b"x"),
        (1, ("a",)), {1, "b"}, frozenset({None}), {1: "x", (2, 3): [4], None: {}}, {"$": "tag", "": 1}, range(3, 9, 2),
        datetime.datetime(2024, 2, 29, 12, 30, 15, 7, tzinfo=datetime.UTC), datetime.date(1, 1, 1),
        datetime.timedelta(days=-1, microseconds=1), decimal.Decimal("1.10E-7"), [[[[]]]],
    ]  # fmt: skip
    await session.set({"values": values})
    received_all = await back(session, "values")
    for sent, received in zip(values, received_all, strict=True):
        assert type(received) is type(sent) and received == sent, (sent, received)
    # As text, because IPython breaks a long list into lines.
    await prints(session, "print([type(v).__name__ for v in values])", repr([type(v).__name__ for v in values]))


@check("values")
async def objects_are_read_by_attribute(session: Any) -> None:
    """Dataclasses and named tuples of the host: fields by attribute there."""

    @dataclasses.dataclass
    class Point:
        x: int
        label: str

    pair = collections.namedtuple("pair", "left right")
    await session.set({"point": Point(3, "é"), "both": pair(1, [2])})
    await prints(session, "print(point.x, point.label, both.left, both[1])", "3 é 1 [2]\n")


@check("values")
async def deep_and_wide_values_cross(session: Any) -> None:
    """150 levels of lists, 50 000 keys in their order, 2 000 variables at once."""
    deep: Any = []
    for _ in range(150):
        deep = [deep]
    wide = {f"k{(i * 7919) % 50_000}": i for i in range(50_000)}
    await session.set({"deep": deep, "wide": wide, **{f"v{i}": i for i in range(2000)}})
    assert await back(session, "deep") == deep
    received = await back(session, "wide")
    assert received == wide and list(received) == list(wide)
    await prints(session, "print(v0 + v1999)", "1999\n")


@check("values")
async def numbers_are_exact(session: Any) -> None:
    """Every kind of float, ints of any size, the difference of 1, 1.0 and True."""
    numbers = [0.1, 5e-324, 1.7976931348623157e308, float("-inf"), 2**63, -(2**64) - 1, 10**400, 1, 1.0, True]
    await session.set({"numbers": [*numbers, float("nan")]})
    received = await back(session, "numbers")
    assert repr(received) == repr([*numbers, float("nan")]), received
    await prints(
        session, "print(numbers[0] == 0.1, numbers[6] == 10 ** 400, numbers[-1] != numbers[-1])", "True True True\n"
    )


@check()
async def values_can_be_asked_for(session: Any) -> None:
    """`get` gives the values of variables; one that does not exist is a KeyError."""
    get = method(session, "get")
    await ok(session, "a = [1, 'x']\nb = None")
    assert await get(["a", "b"]) == {"a": [1, "x"], "b": None}
    try:
        await get(["a", "nothing"])
    except KeyError as error:
        assert "nothing" in str(error)
    else:
        raise AssertionError("a variable that does not exist was given")


# ------------------------------------------------------------------------------------------------- limits


@check("interrupt")
async def busy_loops_are_interrupted(session: Any) -> None:
    """``while True`` ends in a ``timeout`` error; variables stay."""
    result = await session.run("kept = 1\nprint('started')\nwhile True: pass", timeout=0.3)
    assert result.error is not None and result.error.kind == "timeout" and not result.lost, result
    assert result.stdout == "started\n" and result.seconds < 10
    await prints(session, "print(kept)", "1\n")


@check("interrupt", "process")
async def sleeps_are_interrupted(session: Any) -> None:
    """Blocking system calls too, in the main thread or awaited."""
    for code in ("import time; time.sleep(1e6)", "import asyncio; await asyncio.sleep(1e6)",
                 "import threading; threading.Event().wait()"):  # fmt: skip
        result = await session.run(code, timeout=0.3)
        assert result.error is not None and result.error.kind == "timeout" and not result.lost, result


@check("interrupt", "kill")
async def code_that_resists_is_replaced(session: Any) -> None:
    """Code that swallows the interrupt loses its session; the result names what is gone; the session works on."""
    await session.set({"given": 1})
    await ok(session, "made = 2")
    code = "while True:\n    try:\n        while True:\n            x = 1\n    except BaseException:\n        y = 1"
    result = await session.run(code, timeout=0.3)
    assert result.error is not None and result.error.kind == "timeout"
    assert {"given", "made"} <= set(result.lost), result.lost
    await prints(session, "print('made' in globals())", "False\n")


@check("interrupt")
async def a_cancelled_run_stops_the_cell(session: Any) -> None:
    """Cancelling ``run`` interrupts the code, also while it waits for the host; the session can be used on."""
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.sleep(1000)

    in_thread = "asyncio.get_running_loop().run_in_executor(None, signal)"
    for code in ("wait()", f"import asyncio\nawait asyncio.gather({in_thread}, asyncio.sleep(1000))"):

        async def signal() -> None:
            started.set()

        started.clear()
        task = asyncio.ensure_future(session.run(code, {"wait": wait, "signal": signal}))
        await asyncio.wait_for(started.wait(), 20)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        else:
            raise AssertionError("the run was not cancelled")
    await prints(session, "print(2)", "2\n")


@check("process")
async def a_dead_worker_is_replaced(session: Any) -> None:
    """``os._exit`` or a fatal signal: the result says what is gone, the session works on."""
    for code in ("import os; os._exit(7)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"):
        await ok(session, "made = 1")
        result = await session.run(code)
        assert result.error is not None and "made" in result.lost, result
        await prints(session, "print('made' in globals())", "False\n")


@check("process")
async def closed_descriptors_do_no_harm(session: Any) -> None:
    """Closing 0 to 255 cuts neither the channel nor the output of later cells."""
    await ok(session, "import os\nfor fd in range(256):\n    try: os.close(fd)\n    except OSError: pass")
    await prints(session, "print('on')\nr = os.system('echo child')", "on\nchild\n")
    await ok(session, "import sys\nsys.stdout.close(); sys.stderr = None; sys.stdin.close()")
    await prints(session, "print('still')", "still\n")


@check("process")
async def forks_do_no_harm(session: Any) -> None:
    """``os.fork`` and ``multiprocessing``: children print, compute, and cannot use the channel."""
    result = await ok(
        session,
        """
        import os, sys
        pid = os.fork()
        if pid == 0:
            print("child")
            try:
                SUBMIT(1)
            except RuntimeError as e:
                print("refused")
            sys.exit(0)
        os.waitpid(pid, 0)
        print("parent")
        """,
    )
    assert result.stdout == "child\nrefused\nparent\n" and result.submission is None, result
    await ok(session, "import os\nif os.fork() == 0:\n    child = 1\nelse:\n    os.wait()")
    await prints(session, "print('once', 'child' in globals())", "once False\n")


@check("interrupt")
async def time_is_measured(session: Any) -> None:
    """A result says how long its cell took."""
    start = time.perf_counter()
    result = await ok(session, "import time; time.sleep(0.05)")
    assert 0.05 <= result.seconds <= time.perf_counter() - start + 0.05
