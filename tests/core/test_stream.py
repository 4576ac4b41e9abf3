"""``rlm.stream``: typed events as they happen, the text of the root, the prediction last; and leaving early."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.lm15 import Message, Request, Response, TextPart, Usage

import rlm_dspy
from rlm_dspy import RLM, LimitReached
from rlm_dspy import events as ev
from rlm_dspy.environments.base import Environment
from rlm_dspy.stream import RunStream
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")

SECONDS = 60.0


def tree(call: Call) -> str | Reply:
    """A root with one child and one sub-call."""
    if "PART" in call.own[0]["content"]:
        return code("SUBMIT('from below')", "The child's plan.")
    if call.turn == 0:
        return Reply(code("print(rlm_query('PART'), llm_query('x'))", "Ask first."), reasoning="I wonder.")
    return code("SUBMIT('a')", "Now I know.")


def program(sandbox: Environment, **options: Any) -> RLM:
    return RLM("query -> answer", interpreter_factory=sandbox, sub_lm=ScriptedLM(lambda call: "sub"), **options)


async def collect(stream: RunStream) -> list[Any]:
    async with asyncio.timeout(SECONDS):
        return [item async for item in stream]


@pytest.mark.parametrize("way", ["async for", "for", "next", "anext"])
def test_events_come_in_order_and_the_prediction_last(sandbox: Environment, way: str) -> None:
    rlm = program(sandbox, max_depth=2)

    async def by_anext() -> list[Any]:
        stream, items = rlm.stream(query="q"), []
        while not isinstance(items[-1] if items else None, dspy.Prediction):
            items.append(await anext(stream))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        return items

    with dspy.context(lm=ScriptedLM(tree)):
        if way == "async for":
            items = asyncio.run(collect(rlm.stream(query="q")))
        elif way == "anext":
            items = asyncio.run(by_anext())
        elif way == "next":
            stream = rlm.stream(query="q")
            items = [next(stream)]
            items += list(stream._own)
        else:
            items = list(rlm.stream(query="q"))
    pred = items.pop()
    assert isinstance(pred, dspy.Prediction) and pred.answer == "a" and pred.outcome == "submitted"
    root = [item for item in items if item.run == items[0].run and not isinstance(item, ev.TextDelta)]
    assert tuple(root) == pred.trajectory.events, "the events are those of the log"
    (child,) = (item for item in items if isinstance(item, ev.ChildEnded))
    below = [item for item in items if item.run == child.run_id]
    assert [item for item in below if not isinstance(item, ev.TextDelta)] == list(child.events)
    assert {item.depth for item in below} == {1}
    assert items.index(child) > max(items.index(item) for item in below)


def test_the_text_of_the_root_adds_up_to_its_replies(sandbox: Environment) -> None:
    rlm = program(sandbox, max_depth=2)
    with dspy.context(lm=ScriptedLM(tree)):
        items = asyncio.run(collect(rlm.stream(query="q")))
    for acted in (item for item in items if isinstance(item, ev.Acted)):
        deltas = [
            item
            for item in items
            if isinstance(item, ev.TextDelta) and (item.run, item.turn) == (acted.run, acted.turn)
        ]
        assert "".join(item.text for item in deltas if not item.reasoning) == acted.reply
        assert {item.role for item in deltas} == {"act"} and {item.seq for item in deltas} == {-1}
        assert items.index(deltas[-1]) < items.index(acted)
    assert "".join(item.text for item in items if isinstance(item, ev.TextDelta) and item.reasoning) == "I wonder."
    assert not any(isinstance(event, ev.TextDelta) for event in items[-1].trajectory.events)


def test_text_comes_while_it_is_written(sandbox: Environment, endpoint: Callable[..., Any]) -> None:
    """Through the real HTTP streaming of ``dspy.LM``, word by word; usage is counted all the same."""
    plan = " ".join(f"word{n}" for n in range(200))
    for engine in ("auto", "litellm"):
        server = endpoint([code("print(1)", plan), "[[ ## answer ## ]]\nthe best\n\n[[ ## completed ## ]]"])
        lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False, engine=engine, num_retries=0)
        with dspy.context(lm=lm):
            items = asyncio.run(collect(program(sandbox, max_iters=1).stream(query="q")))
        deltas = [item for item in items if isinstance(item, ev.TextDelta)]
        written = [item for item in deltas if item.role == "act"]
        assert "".join(item.text for item in written) == code("print(1)", plan)
        assert "the best" in "".join(item.text for item in deltas if item.role == "extract")
        assert {item.request for item in written} == {1}
        assert items[-1].answer == "the best"
        assert items[-1].usage["input_tokens"] == 22, engine
        gc.collect()


class _Complete:
    """An engine without ``stream``, which DSPy allows."""

    async def complete(self, request: Request) -> Response:
        text = code("SUBMIT('x')")
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant([TextPart(text)]),
            finish_reason="stop",
            usage=Usage(input_tokens=1, output_tokens=1, total_tokens=2),
        )


class _SyncComplete:
    def complete(self, request: Request) -> Response:
        return asyncio.run(_Complete().complete(request))


@pytest.mark.parametrize("kind", ["no stream", "sync only"])
def test_an_lm_that_cannot_stream_gives_events_all_the_same(sandbox: Environment, kind: str) -> None:
    lm: dspy.LM = ScriptedLM([code("SUBMIT('x')")], sync_only=True)
    if kind == "no stream":
        lm = dspy.LM("own/engine", engine=_SyncComplete(), async_engine=_Complete(), cache=False)
    with dspy.context(lm=lm):
        items = asyncio.run(collect(program(sandbox).stream(query="q")))
    assert items[-1].answer == "x" and not any(isinstance(item, ev.TextDelta) for item in items)
    assert any(isinstance(item, ev.Acted) for item in items)


def test_a_request_that_is_made_again_has_a_number_of_its_own(
    sandbox: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlm_dspy.calls.RETRY_SECONDS", (0.0,))
    replies = [Reply(error=dspy.lm15.RateLimitError("slow down")), code("SUBMIT('x')")]
    with dspy.context(lm=ScriptedLM(replies)):
        items = asyncio.run(collect(program(sandbox).stream(query="q")))
    assert items[-1].answer == "x"
    assert {item.request for item in items if isinstance(item, ev.TextDelta)} == {2}


@pytest.mark.parametrize("way", ["async for", "for"])
def test_errors_are_raised_after_the_events_before_them(sandbox: Environment, way: str) -> None:
    rlm = program(sandbox, max_iters=1, on_limit="raise")
    seen: list[Any] = []

    async def main(**inputs: Any) -> None:
        async for item in rlm.stream(**inputs):
            seen.append(item)

    def both(**inputs: Any) -> None:
        if way == "async for":
            asyncio.run(main(**inputs))
        else:
            for item in rlm.stream(**inputs):
                seen.append(item)

    replies = [code("print(1)"), "[[ ## answer ## ]]\nbest\n\n[[ ## completed ## ]]"]
    with dspy.context(lm=ScriptedLM(replies)), pytest.raises(LimitReached) as raised:
        both(query="q")
    assert len(raised.value.trajectory) == 1 and raised.value.prediction.answer == "best"
    assert isinstance(seen[-1], ev.RunEnded)
    with pytest.raises(ValueError, match="Missing required inputs"):
        both()
    with pytest.raises(TypeError, match="by keyword"):
        rlm.stream("q")


@pytest.mark.parametrize("how", ["break", "aclose", "with", "cancel"])
def test_leaving_early_cancels_the_run(sandbox: Environment, how: str) -> None:
    """The code loops for ever: only a cancelled run ends."""
    ended: list[ev.Event] = []
    root = ScriptedLM(lambda call: code("while True: pass"))

    def watch(event: ev.Event, run: rlm_dspy.Run) -> None:
        if isinstance(event, ev.RunEnded):
            ended.append(event)

    async def until_acted(stream: RunStream) -> None:
        async for item in stream:
            if isinstance(item, ev.Acted):
                if how == "cancel":
                    acted.set()
                    continue
                break

    async def main() -> None:
        nonlocal acted
        acted = asyncio.Event()
        stream = program(sandbox).stream(query="q")
        if how == "cancel":
            task = asyncio.ensure_future(until_acted(stream))
            await acted.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended, "the task ends when the run has"
        elif how == "with":
            async with stream:
                await until_acted(stream)
            assert ended
        else:
            await until_acted(stream)
            await stream.aclose()
            if how == "aclose":
                await stream.aclose()
            while not ended:
                await asyncio.sleep(0.001)

    acted = asyncio.Event()
    with dspy.context(lm=root), rlm_dspy.subscribe(watch):
        asyncio.run(asyncio.wait_for(main(), SECONDS))
    assert [event.error for event in ended] == ["CancelledError"]


@pytest.mark.parametrize("how", ["break", "close", "with"])
def test_leaving_a_synchronous_stream_early_cancels_the_run(sandbox: Environment, how: str) -> None:
    ended: list[str | None] = []

    def watch(event: ev.Event, run: rlm_dspy.Run) -> None:
        if isinstance(event, ev.RunEnded):
            ended.append(event.error)

    def until_acted(items: Any) -> None:
        for item in items:
            if isinstance(item, ev.Acted):
                break

    with dspy.context(lm=ScriptedLM(lambda call: code("while True: pass"))), rlm_dspy.subscribe(watch):
        stream = program(sandbox).stream(query="q")
        if how == "with":
            with stream:
                until_acted(stream)
        else:
            until_acted(stream)
            if how == "close":
                stream.close()
    assert ended == ["CancelledError"]


def test_a_stream_that_is_never_iterated_over_runs_nothing(sandbox: Environment) -> None:
    root = ScriptedLM([])
    with dspy.context(lm=root):
        stream = program(sandbox).stream(query="q")
        stream.close()
        with pytest.raises(RuntimeError, match="again"):
            list(stream)
        del stream
    assert not root.calls


def test_a_slow_consumer_holds_up_nothing_and_text_waits_as_one_piece(sandbox: Environment) -> None:
    """The run ends while the consumer still has its first item; what waits is one item for each event and request."""
    plan = "word " * 5_000
    replies = [code("print(1)", plan), code("SUBMIT('x')")]
    over = threading.Event()

    def watch(event: ev.Event, run: rlm_dspy.Run) -> None:
        if isinstance(event, ev.RunEnded):
            over.set()

    with dspy.context(lm=ScriptedLM(replies)), rlm_dspy.subscribe(watch):
        stream = iter(program(sandbox).stream(query="q"))
        next(stream)
        assert over.wait(SECONDS)
        items = list(stream)
    assert items[-1].answer == "x"
    deltas = [item for item in items if isinstance(item, ev.TextDelta)]
    assert [item.text for item in deltas] == replies


def test_the_context_is_that_of_the_call(sandbox: Environment) -> None:
    with dspy.context(lm=ScriptedLM([code("SUBMIT('x')")])):
        stream = program(sandbox).stream(query="q")
    assert asyncio.run(collect(stream))[-1].answer == "x"


def test_many_streams_at_once_do_not_mix(sandbox: Environment) -> None:
    rlm = program(sandbox)

    async def main() -> list[list[Any]]:
        return await asyncio.gather(*(collect(rlm.stream(query=f"q{n}")) for n in range(8)))

    with dspy.context(lm=ScriptedLM(lambda call: code("SUBMIT(query)"))):
        streams = asyncio.run(main())
    assert [items[-1].answer for items in streams] == [f"q{n}" for n in range(8)]
    assert len({item.run for items in streams for item in items[:-1]}) == 8
    assert all(len({item.run for item in items[:-1]}) == 1 for items in streams)


def test_in_a_running_event_loop_the_synchronous_stream_works_too(sandbox: Environment) -> None:
    """As in a notebook."""

    async def main() -> list[Any]:
        return list(program(sandbox).stream(query="q"))

    with dspy.context(lm=ScriptedLM([code("SUBMIT('x')")])):
        assert asyncio.run(main())[-1].answer == "x"


def test_a_stream_costs_little(sandbox: Environment) -> None:
    """Ten turns with twenty sub-calls each: within a fraction of the processor time that they take without."""

    def root(call: Call) -> str:
        if call.turn == 10:
            return code("SUBMIT('x')")
        return code(f"_ = llm_query_batched([f'{call.turn} {{n}}' for n in range(20)])")

    rlm = program(sandbox, max_llm_calls=None)

    def plain() -> Any:
        return rlm(query="q")

    def streamed() -> Any:
        return list(rlm.stream(query="q"))[-1]

    seconds: dict[Any, list[float]] = {plain: [], streamed: []}
    with dspy.context(lm=ScriptedLM(root)):
        for _ in range(4):
            for way in seconds:
                started = time.process_time()
                assert way().answer == "x"
                seconds[way].append(time.process_time() - started)
    assert min(seconds[streamed]) < 1.5 * min(seconds[plain]) + 0.1


def test_calls_of_a_session_stream_too_and_one_that_was_left_costs_the_session_nothing(sandbox: Environment) -> None:
    replies = [code("n = 7\nSUBMIT('first')"), code("while True: pass"), code("SUBMIT(str(n))")]
    with dspy.context(lm=ScriptedLM(replies)), program(sandbox).session() as session:
        assert list(session.stream(query="first"))[-1].answer == "first"
        for item in session.stream(query="left"):
            if isinstance(item, ev.Acted):
                break
        assert session.history[-1].outcome == "failed"
        last = list(session.stream(query="last"))[-1]
    assert last.outcome == "submitted"


def test_calls_of_a_session_stream_asynchronously(sandbox: Environment) -> None:
    async def main() -> list[str]:
        async with program(sandbox).session() as session:
            return [(await collect(session.stream(query="q")))[-1].answer for _ in range(2)]

    with dspy.context(lm=ScriptedLM([code("n = 7\nSUBMIT('first')"), code("SUBMIT(str(n))")])):
        assert asyncio.run(main()) == ["first", "7"]
