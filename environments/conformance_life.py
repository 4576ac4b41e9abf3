"""Conformance checks: the life of a session, several at once, what host functions may do, a session carried over."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import dspy

from rlm_dspy.environments.conformance_base import Factory, check, factory_check, method, ok, opened, prints


def _waiting() -> tuple[Any, asyncio.Event, asyncio.Event]:
    """A host function that waits until it is cancelled, and events for its beginning and its end."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    return wait, started, ended


@check()
async def opening_twice_is_once(session: Any) -> None:
    """`open` of an open session does nothing."""
    await ok(session, "x = 1")
    await session.open()
    await prints(session, "print(x)", "1\n")


@factory_check()
async def closing_twice_is_once(factory: Factory) -> None:
    """`close` may come twice, before `open` too; afterwards the session is over, and says so."""
    for used in (False, True):
        session = factory()
        if used:
            await session.open()
        await session.close()
        await session.close()
        try:
            await session.run("1")
        except dspy.CodeInterpreterError:
            continue
        raise AssertionError("a closed session ran a cell")


@factory_check("interrupt")
async def closing_ends_a_running_cell(factory: Factory) -> None:
    """`close` while a cell runs: the run ends, one way or the other, soon."""
    started = asyncio.Event()

    async def tell() -> None:
        started.set()

    session = factory()
    await session.open()
    running = asyncio.ensure_future(session.run("tell()\nimport time\nwhile True: time.sleep(0.01)", {"tell": tell}))
    try:
        await asyncio.wait_for(started.wait(), 60)
    finally:
        await session.close()
    done, _ = await asyncio.wait({running}, timeout=30)
    assert done, "the cell still runs"
    running.exception()


@check()
async def one_cell_at_a_time(session: Any) -> None:
    """A second run while one is under way is refused; the first goes on."""
    started, finish = asyncio.Event(), asyncio.Event()

    async def wait() -> int:
        started.set()
        await finish.wait()
        return 7

    running = asyncio.ensure_future(session.run("x = wait()", {"wait": wait}))
    await asyncio.wait_for(started.wait(), 60)
    try:
        await session.run("x = 1")
    except dspy.CodeInterpreterError:
        pass
    else:
        raise AssertionError("two cells ran at once")
    finally:
        finish.set()
    assert (await running).error is None
    await prints(session, "print(x)", "7\n")


@check("interrupt")
async def a_cell_can_be_interrupted_from_outside(session: Any) -> None:
    """`interrupt` ends the running cell in a ``timeout`` error; what it did stays."""
    interrupt = method(session, "interrupt")
    started = asyncio.Event()

    async def tell() -> None:
        started.set()

    running = asyncio.ensure_future(session.run("kept = 3\ntell()\nwhile True: pass", {"tell": tell}))
    await asyncio.wait_for(started.wait(), 60)
    interrupt()
    result = await asyncio.wait_for(running, 60)
    assert result.error is not None and result.error.kind == "timeout" and not result.lost, result
    await prints(session, "print(kept)", "3\n")


@check("interrupt")
async def interrupts_pass_through_except_exception(session: Any) -> None:
    """A loop that catches and ignores every ``Exception`` is interrupted like any other."""
    code = "while True:\n    try:\n        1 / 0\n    except Exception:\n        pass"
    result = await session.run(code, timeout=0.3)
    assert result.error is not None and result.error.kind == "timeout" and not result.lost, result


@check("interrupt")
async def host_calls_end_with_an_interrupted_cell(session: Any) -> None:
    """A call that a cancelled run was waiting for is cancelled on the host."""
    wait, started, ended = _waiting()

    running = asyncio.ensure_future(session.run("wait()", {"wait": wait}))
    await asyncio.wait_for(started.wait(), 60)
    running.cancel()
    await asyncio.wait({running})
    await asyncio.wait_for(ended.wait(), 30)


@check("process")
async def a_death_while_the_host_works_is_told(session: Any) -> None:
    """The worker dies while a call of it is being answered: the result says so, the session works on."""
    wait, started, ended = _waiting()

    async def seen() -> None:
        await started.wait()

    code = "import os, threading\nthreading.Thread(target=wait).start()\nseen()\nos._exit(3)"
    result = await asyncio.wait_for(session.run(code, {"wait": wait, "seen": seen}), 60)
    assert result.error is not None and result.error.type == "SandboxDied", result
    await asyncio.wait_for(ended.wait(), 30)
    await prints(session, "print('on')", "on\n")


@check("process")
async def output_before_a_death_is_kept(session: Any) -> None:
    """What a cell had printed a while before its worker died is in the result."""

    async def seen() -> None:
        deadline = time.monotonic() + 30
        while "before" not in getattr(session, "partial_output", "before") and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    method(session, "interrupt")
    result = await session.run("import os\nprint('before')\nseen()\nos._exit(0)", {"seen": seen})
    assert result.error is not None and "before" in result.stdout, result


@check()
async def wrong_names_of_variables_are_refused(session: Any) -> None:
    """What no variable can be called, or what belongs to the session, is a ValueError; nothing is set."""
    for name in ("two words", "SUBMIT", "", "1x"):
        try:
            await session.set({name: 1, "fine": 1})
        except ValueError:
            continue
        raise AssertionError(f"{name!r} was taken for a variable's name")
    await prints(session, "print('fine' in globals())", "False\n")


# ------------------------------------------------------------------------------------------------- several at once


@factory_check("process")
async def sessions_are_apart(factory: Factory) -> None:
    """Variables, changes of modules, environment variables and files of one are not seen by another."""
    async with opened(factory) as first, opened(factory) as second:
        await ok(first, "import os, math\nx = 1\nmath.pi = 3\nos.environ['MARK'] = '1'\nopen('mark', 'w').close()")
        code = "import os, math\nprint('x' in globals(), math.pi > 3, 'MARK' in os.environ, os.path.exists('mark'))"
        await prints(second, code, "False True False False\n")


@factory_check()
async def sessions_run_at_once(factory: Factory) -> None:
    """Three sessions compute while each waits for the others; each gets its own values and output."""
    waiting = 0
    all_here = asyncio.Event()

    async def meet(i: int) -> int:
        nonlocal waiting
        waiting += 1
        if waiting == 3:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 60)
        return i + 1

    async def one(i: int) -> None:
        async with opened(factory) as session:
            await session.set({"given": i})
            await prints(session, "print(given, meet(given))", f"{i} {i + 1}\n", {"meet": meet})

    await asyncio.gather(*(one(i) for i in range(3)))


@factory_check()
async def a_host_function_may_run_a_session(factory: Factory) -> None:
    """As a child RLM does: sessions inside host functions, two at once, while the outer one waits."""

    async def rlm_query(text: str) -> str:
        async with opened(factory) as session:
            await session.set({"text": text})
            result = await ok(session, "SUBMIT(text.upper())")
            assert result.submission is not None
            return str(result.submission.args[0])

    code = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(rlm_query, ["a", "b"]))
        print(found)
    """
    async with opened(factory) as outer:
        await prints(outer, code, "['A', 'B']\n", {"rlm_query": rlm_query})


# ------------------------------------------------------------------------------------------------- host functions


@check()
async def batches_keep_their_order(session: Any) -> None:
    """200 questions in one call, answered in whatever order; each answer in its place, failures too."""

    async def batch(prompts: list[str]) -> list[str]:
        async def one(i: int, prompt: str) -> str:
            await asyncio.sleep(0.001 * ((i * 7) % 5))
            return f"[ERROR] {prompt}" if i == 5 else prompt[::-1]

        return list(await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts))))

    code = "r = batch([f'q{i}' for i in range(200)])\nprint(len(r), r[0], r[5], r[199])"
    await prints(session, code, "200 0q [ERROR] q5 991q\n", {"batch": batch})


@check()
async def many_calls_in_a_row(session: Any) -> None:
    """300 calls, one after the other, of one cell."""
    count = 0

    async def up() -> int:
        nonlocal count
        count += 1
        return count

    await prints(session, "print([up() for _ in range(300)][-1])", "300\n", {"up": up})


@check("values")
async def large_arguments_and_results(session: Any) -> None:
    """Four calls at once, each with 3 MB there and 3 MB back."""

    async def turn(text: str) -> str:
        return text[::-1]

    code = """
        from concurrent.futures import ThreadPoolExecutor
        texts = [c * 3_000_000 + "é" for c in "abcd"]
        with ThreadPoolExecutor(4) as pool:
            print(list(pool.map(turn, texts)) == [t[::-1] for t in texts])
    """
    await prints(session, code, "True\n", {"turn": turn})


@check()
async def functions_are_those_of_the_cell(session: Any) -> None:
    """Each cell has the host functions it was given, and not those of the cell before."""

    async def one() -> str:
        return "one"

    async def other() -> str:
        return "other"

    await prints(session, "print(one())", "one\n", {"one": one})
    await prints(session, "print(one())", "other\n", {"one": other})
    result = await session.run("one()", {"two": one})
    assert result.error is not None and result.error.type == "NameError", result


# ------------------------------------------------------------------------------------------------- carried over


@factory_check("values")
async def a_session_can_be_carried_over(factory: Factory) -> None:
    """Variables handed out by one session are the same in a fresh one, definitions come as source: a saved session."""
    kept: dict[str, Any] = {}
    source: list[str] = []

    async def keep(name: str, value: Any) -> None:
        kept[name] = value

    async def define(text: str) -> None:
        source.append(text)

    async with opened(factory) as first:
        await ok(first, "def double(n): return 2 * n")
        await ok(first, "rows = [{'a': (1, None)}, 'é\\0', b'\\xff']\nbig = 10 ** 40\nseen = {1, 2}")
        code = """
            import inspect
            for name in ("rows", "big", "seen"):
                keep(name, globals()[name])
            define(inspect.getsource(double))
        """
        await ok(first, code, {"keep": keep, "define": define})
    async with opened(factory) as second:
        await second.set(kept)
        await ok(second, source[0])
        await prints(
            second,
            "print(rows == [{'a': (1, None)}, 'é\\0', b'\\xff'], big == 10 ** 40, seen == {1, 2}, double(4))",
            "True True True 8\n",
        )
