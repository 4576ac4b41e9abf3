"""``dspy.streamify`` on an RLM: synchronous and asynchronous programs, slow consumers, status messages, listeners."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import dspy
import pytest
from dspy.streaming import StatusMessage, StatusMessageProvider, StreamListener, StreamResponse
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import RLM, ConfigurationError, LimitReached, Run, listeners
from rlm_dspy import events as ev
from rlm_dspy.deltas import Fields
from rlm_dspy.environments.base import Environment
from rlm_dspy.signatures.dialect import find_code
from rlm_dspy.status import RunStatus
from rlm_dspy.streaming import Bridge, Home
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")

SECONDS = 120.0


class Chatty(StatusMessageProvider):
    """A message for every step."""

    def lm_start_status_message(self, instance: Any, inputs: Any) -> str:
        return "lm start"

    def lm_end_status_message(self, outputs: Any) -> str:
        return "lm end"

    def module_start_status_message(self, instance: Any, inputs: Any) -> str:
        return f"{type(instance).__name__} start"

    def module_end_status_message(self, outputs: Any) -> str:
        return "module end"

    def tool_start_status_message(self, instance: Any, inputs: Any) -> str:
        return f"{instance.name} start"

    def tool_end_status_message(self, outputs: Any) -> str:
        return "tool end"


def lookup(key: str) -> str:
    """Find a key."""
    return key.upper()


def policy(call: Call) -> str:
    if "REPL" not in call.system:
        return "sub"
    if call.turn == 0:
        return code("print(lookup('k'), llm_query_batched([f'a{n}' for n in range(12)]))")
    return code("SUBMIT('x')")


async def consume(stream: AsyncIterator[Any], delay: float = 0.0) -> list[Any]:
    items = []
    async with asyncio.timeout(SECONDS):
        async for item in stream:
            items.append(item)
            await asyncio.sleep(delay)
    return items


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("sync_only", [False, True])
@pytest.mark.parametrize("delay", [0.0, 0.01])
def test_status_messages_arrive_in_order_also_at_a_slow_consumer(
    sandbox: Environment, is_async: bool, sync_only: bool, delay: float
) -> None:
    """More items than DSPy's channel holds (16), with a consumer slower than the run."""
    rlm = RLM("query -> answer", tools=[lookup], interpreter_factory=sandbox)
    program = dspy.streamify(rlm, status_message_provider=Chatty(), is_async_program=is_async)

    async def main() -> list[Any]:
        return await consume(program(query="q"), delay)

    with dspy.context(lm=ScriptedLM(policy, sync_only=sync_only)):
        items = asyncio.run(main())
    assert isinstance(items[-1], dspy.Prediction) and items[-1].answer == "x"
    messages = [item.message for item in items[:-1] if isinstance(item, StatusMessage)]
    assert messages[0] == "RLM start" and messages[-1] == "module end"
    if not sync_only:
        assert messages.count("lm start") == messages.count("lm end") == 14
        assert messages.count("RolePredict start") == 14
        assert messages.index("lookup start") < messages.index("tool end")


@pytest.mark.parametrize("is_async", [False, True])
def test_tools_and_sub_agents_that_call_lms_under_a_stream(sandbox: Environment, is_async: bool) -> None:
    """Their LM calls are made in threads, stream like all others, and report their status."""
    sub = ScriptedLM(lambda call: "[[ ## a ## ]]\nyes\n\n[[ ## completed ## ]]")
    child = RLM("text -> answer", interpreter_factory=sandbox)

    def predict(text: str) -> str:
        """A predictor in a tool."""
        return str(dspy.Predict("q -> a")(q=text, lm=sub).a)

    def run(text: str) -> str:
        """A run in a tool."""
        return str(child(text=text).answer)

    source = "import dspy\nprint(predict('x'), run('y'), dspy.Predict('q -> a')(q='z').a)"
    replies = iter([code(source), code("SUBMIT('done')")])
    lm = ScriptedLM(lambda call: code("SUBMIT(text)") if "Variable `text`" in call.prompt else next(replies))
    rlm = RLM("query -> answer", tools=[predict, run], sub_lm=sub, interpreter_factory=sandbox)
    program = dspy.streamify(rlm, status_message_provider=Chatty(), is_async_program=is_async)

    async def main() -> list[Any]:
        return await consume(program(query="q"))

    with dspy.context(lm=lm):
        items = asyncio.run(main())
    assert items[-1].answer == "done"
    assert items[-1].trajectory[0]["output"] == "yes y yes"
    messages = [item.message for item in items if isinstance(item, StatusMessage)]
    assert messages.count("lm start") == 5 and messages.count("RLM start") == 2
    assert {"predict start", "run start", "Predict start"} <= set(messages)


def test_sync_streaming(sandbox: Environment) -> None:
    rlm = RLM("query -> answer", tools=[lookup], interpreter_factory=sandbox)
    program = dspy.streamify(rlm, status_message_provider=Chatty(), async_streaming=False)
    with dspy.context(lm=ScriptedLM(policy)):
        items = list(program(query="q"))
    assert items[-1].answer == "x"
    assert sum(isinstance(item, StatusMessage) for item in items) > 16


@pytest.mark.parametrize("is_async", [False, True])
def test_a_consumer_that_stops_early_leaves_nothing_running(sandbox: Environment, is_async: bool) -> None:
    rlm = RLM("query -> answer", tools=[lookup], interpreter_factory=sandbox)
    program = dspy.streamify(rlm, status_message_provider=Chatty(), is_async_program=is_async)

    async def main() -> Any:
        async with asyncio.timeout(SECONDS):
            stream = program(query="q")
            first = await anext(stream)
            await stream.aclose()
            return first

    with dspy.context(lm=ScriptedLM(policy)):
        first = asyncio.run(main())
    assert first.message == "RLM start"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_that_raises_does_not_block_on_a_slow_consumer(sandbox: Environment, is_async: bool) -> None:
    """More messages than the channel holds, and then an error."""
    rlm = RLM("query -> answer", tools=[lookup], interpreter_factory=sandbox, max_iters=1, on_limit="raise")
    program = dspy.streamify(rlm, status_message_provider=Chatty(), is_async_program=is_async)
    seen: list[Any] = []

    async def main() -> None:
        async with asyncio.timeout(SECONDS):
            async for item in program(query="q"):
                seen.append(item)
                time.sleep(0.005)  # awaiting here, DSPy would cancel the consumer in place of telling it the error

    with dspy.context(lm=ScriptedLM(policy)), pytest.raises((LimitReached, ExceptionGroup)) as raised:
        asyncio.run(main())
    error: BaseException = raised.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LimitReached) and len(error.trajectory) == 1
    assert len(seen) > 30


@pytest.mark.parametrize("when", ["before", "while it waits"])
def test_a_consumer_whose_event_loop_has_ended_does_not_hold_up_the_run(when: str) -> None:
    made: list[tuple[Bridge, Home]] = []
    ready, end = threading.Event(), threading.Event()

    def consumer() -> None:
        async def main() -> None:
            send, receive = anyio.create_memory_object_stream[Any](1)
            with send, receive:
                made.append((Bridge(send, asyncio.get_running_loop()), Home(asyncio.get_running_loop())))
                ready.set()
                await asyncio.to_thread(end.wait, SECONDS)

        asyncio.run(main())

    thread = threading.Thread(target=consumer)
    thread.start()
    assert ready.wait(SECONDS)
    bridge, home = made[0]

    async def run() -> None:
        for number in range(5):  # more than the channel holds
            await bridge.send(number)
        flushing = asyncio.ensure_future(bridge.flush(home))
        if when == "while it waits":
            await asyncio.wait({flushing}, timeout=0.1)
            assert not flushing.done()
        end.set()
        if when == "before":
            await asyncio.to_thread(thread.join)
        await bridge.send("late")
        async with asyncio.timeout(SECONDS):
            await flushing

    asyncio.run(run())
    thread.join()


@pytest.mark.parametrize("turns", [1, 3])
def test_a_synchronous_call_on_the_consumers_own_loop_does_not_hang(sandbox: Environment, turns: int) -> None:
    """An asynchronous program that calls an RLM without ``await``: its loop stands still meanwhile, then goes on."""

    class Program(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rlm = RLM("query -> answer", interpreter_factory=sandbox)

        async def aforward(self, query: str) -> dspy.Prediction:
            return self.rlm(query=query)

    def submits_at_last(call: Call) -> str:
        return code("SUBMIT('x')") if call.turn == turns - 1 else code("1")

    program = dspy.streamify(Program(), is_async_program=True)

    async def main() -> list[Any]:
        return await consume(program(query="q"))

    with dspy.context(lm=ScriptedLM(submits_at_last)):
        items = asyncio.run(main())
    assert items[-1].answer == "x" and len(items[-1].trajectory) == turns


def test_errors_reach_the_consumer(sandbox: Environment) -> None:
    program = dspy.streamify(RLM("query -> answer", interpreter_factory=sandbox), is_async_program=True)

    async def main() -> list[Any]:
        return await consume(program())

    with dspy.context(lm=ScriptedLM([])), pytest.raises((ValueError, ExceptionGroup)) as raised:
        asyncio.run(main())
    error: BaseException = raised.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert "Missing required inputs" in str(error)


def test_concurrent_streams_do_not_mix(sandbox: Environment) -> None:
    rlm = RLM("query -> answer", interpreter_factory=sandbox)
    program = dspy.streamify(rlm, status_message_provider=Chatty(), is_async_program=True)
    lm = ScriptedLM(lambda call: code("SUBMIT(query)"))

    async def main() -> list[list[Any]]:
        return await asyncio.gather(*(consume(program(query=f"q{n}"), 0.002) for n in range(6)))

    with dspy.context(lm=lm):
        streams = asyncio.run(main())
    assert [items[-1].answer for items in streams] == [f"q{n}" for n in range(6)]
    assert {len(items) for items in streams} == {len(streams[0])}


# ---------------------------------------------------------------------------------------- tokens, as a provider streams


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_the_extracted_answer_streams(
    sandbox: Environment, endpoint: Callable[..., Any], is_async: bool, engine: str
) -> None:
    """A listener on ``answer`` hears ``extract`` word by word, through the real HTTP streaming of ``dspy.LM``."""
    answer = "the best answer that the work supports"
    server = endpoint([code("print(1)"), f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]"])
    rlm = RLM("query -> answer", interpreter_factory=sandbox, max_iters=1)
    listener = StreamListener(signature_field_name="answer")
    program = dspy.streamify(rlm, stream_listeners=[listener], is_async_program=is_async)
    lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False, engine=engine, num_retries=0)

    async def main() -> list[Any]:
        return await consume(program(query="q"))

    with dspy.context(lm=lm):
        items = asyncio.run(main())
    assert items[-1].answer == answer and items[-1].outcome == "extracted"
    pieces = [item for item in items if isinstance(item, StreamResponse)]
    assert len(pieces) > 1
    assert "".join(piece.chunk for piece in pieces).strip() == answer
    assert {piece.signature_field_name for piece in pieces} == {"answer"}
    # LiteLLM leaves a task on the ended loop. Collected while Python parses something, and shown by pytest with a parse
    # of its own, it would be a SystemError there (CPython issue 106905).
    gc.collect()


def test_a_listener_hears_nothing_of_a_submitted_answer_and_does_no_harm(
    sandbox: Environment, endpoint: Callable[..., Any]
) -> None:
    server = endpoint([code("print(1)"), code("SUBMIT('x')")])
    rlm = RLM("query -> answer", interpreter_factory=sandbox)
    program = dspy.streamify(rlm, stream_listeners=[StreamListener("answer")], is_async_program=True)
    lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False)

    async def main() -> list[Any]:
        return await consume(program(query="q"))

    with dspy.context(lm=lm):
        items = asyncio.run(main())
    assert items[-1].answer == "x"
    assert not any(isinstance(item, StreamResponse) for item in items)


def test_streaming_costs_no_time_of_the_run(sandbox: Environment) -> None:
    """The run ends as soon as it would without a consumer that sleeps."""
    ended: list[float] = []

    class Watch(dspy.utils.BaseCallback):
        def on_interpreter_shutdown_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
            ended.append(time.monotonic())

    rlm = RLM("query -> answer", tools=[lookup], interpreter_factory=sandbox)
    with dspy.context(callbacks=[Watch()]):
        program = dspy.streamify(rlm, status_message_provider=Chatty(), is_async_program=True)
    started = time.monotonic()

    async def main() -> list[Any]:
        return await consume(program(query="q"), 0.02)

    with dspy.context(lm=ScriptedLM(policy)):
        items = asyncio.run(main())
    whole = time.monotonic() - started
    assert len(items) > 60 and whole > 1.2
    assert ended[0] - started < whole * 0.75


# ------------------------------------------------------------------------------------- runs: status messages, listeners


def tree(call: Call) -> str:
    """A root with a child and two sub-calls, one of which fails."""
    if "PART" in call.own[0]["content"]:
        return code("x = 1\nSUBMIT('from below')", "The child's plan.")
    if call.turn == 0:
        return code("print(rlm_query('PART'), llm_query_batched(['x', 'bad']), lookup('k'))", "Ask *them*\n\nfirst.")
    return code("a = [1]\n\nSUBMIT('a')", "Now I know.")


def sub(call: Call) -> Reply:
    return Reply(error=RuntimeError("too busy")) if call.prompt == "bad" else Reply("fine")


def watched(sandbox: Environment, root: Any = tree, is_async: bool = True, **how: Any) -> list[Any]:
    rlm = RLM("query -> answer", tools=[lookup], interpreter_factory=sandbox, max_depth=2, sub_lm=ScriptedLM(sub))
    fields = how.pop("fields", None)
    if fields is not None:
        how["stream_listeners"] = listeners(rlm, *fields)
    program = dspy.streamify(rlm, is_async_program=is_async, **how)

    async def main() -> list[Any]:
        return await consume(program(query="q"))

    with dspy.context(lm=ScriptedLM(root)):
        return asyncio.run(main())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_tells_its_turns_sub_calls_and_children(sandbox: Environment, is_async: bool) -> None:
    items = watched(sandbox, is_async=is_async)
    assert items[-1].answer == "a" and sum(isinstance(item, dspy.Prediction) for item in items) == 1
    told = [item for item in items if isinstance(item, RunStatus)]
    texts = [item.message for item in told]
    child = next(item.event.run_id[:4] for item in told if isinstance(item.event, ev.ChildStarted))
    for text in (
        "Turn 1 of 20: asking the model for code...",
        "Turn 2: running 3 lines of code...",
        f"Child {child} started by rlm_query...",
        f"[run {child}, depth 1] Turn 1 of 20: asking the model for code...",
        f"Child {child} submitted.",
        "Sub-call 2, llm_query_batched: x",
    ):
        assert texts.count(text) == 1, texts
    assert sum("failed: " in text and "too busy" in text for text in texts) == 1
    # Tools are told of by DSPy.
    assert not any("lookup" in text for text in texts)
    assert sum(isinstance(item, StatusMessage) and "Calling tool lookup" in item.message for item in items) == 1


def test_a_provider_may_say_it_in_its_own_words_or_not_at_all(sandbox: Environment) -> None:
    class Own(StatusMessageProvider):
        def run_status_message(self, event: ev.Event, run: Run) -> str | None:
            return f"{run.program.signature.signature} {event.turn}" if isinstance(event, ev.TurnEnded) else None

        def module_start_status_message(self, instance: Any, inputs: Any) -> str:
            return f"asking {instance.role}" if getattr(instance, "role", "") else ""

    items = watched(sandbox, status_message_provider=Own())
    texts = [item.message for item in items if isinstance(item, StatusMessage)]
    assert [item.message for item in items if isinstance(item, RunStatus)] == [
        "prompt -> response 1",
        "query -> answer 1",
        "query -> answer 2",
    ]
    assert {"asking act", "asking sub"} <= set(texts)


def test_listeners_hear_reasoning_and_code_of_each_turn_of_the_root(sandbox: Environment) -> None:
    items = watched(sandbox, fields=("reasoning", "code"))
    pieces = [item for item in items if isinstance(item, StreamResponse)]
    for field in ("reasoning", "code"):
        mine = [piece for piece in pieces if piece.signature_field_name == field]
        assert {piece.predict_name for piece in mine} == {"act"}
        turns, text = [], ""
        for piece in mine:
            text += piece.chunk
            if piece.is_last_chunk:
                turns.append(text)
                text = ""
        assert text == "" and turns == [turn[field] for turn in items[-1].trajectory]
    # The child's plan is in none of it, and nothing comes as raw chunks.
    assert all(isinstance(item, (StatusMessage, StreamResponse, dspy.Prediction)) for item in items)


def test_dspy_finds_the_listeners_of_reasoning_and_code_by_itself(sandbox: Environment) -> None:
    items = watched(sandbox, stream_listeners=[StreamListener("code", allow_reuse=True)])
    assert "".join(i.chunk for i in items if isinstance(i, StreamResponse)) == "".join(
        turn["code"] for turn in items[-1].trajectory
    )


@pytest.mark.parametrize("ends", ["direct", "extracted", "submitted"])
def test_a_listener_on_the_answer_hears_whoever_writes_it(sandbox: Environment, ends: str) -> None:
    answer = "the best answer that there is"
    said = f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]"
    replies = {
        "direct": [said],
        "extracted": ["no direct answer", code("print(1)"), said],
        "submitted": ["no direct answer", code(f"SUBMIT({answer!r})")],
    }
    rlm = RLM("query -> answer", interpreter_factory=sandbox, max_iters=1, direct_below=1_000)
    with pytest.raises(ValueError, match="not unique"):
        dspy.streamify(rlm, stream_listeners=[StreamListener("answer")])
    program = dspy.streamify(rlm, stream_listeners=listeners(rlm, "answer"), is_async_program=True)

    async def main() -> list[Any]:
        return await consume(program(query="q"))

    with dspy.context(lm=ScriptedLM(replies[ends])):
        items = asyncio.run(main())
    assert items[-1].answer == answer and items[-1].outcome == ends
    pieces = [item for item in items if isinstance(item, StreamResponse)]
    assert "".join(piece.chunk for piece in pieces) == ("" if ends == "submitted" else answer)
    assert {piece.predict_name for piece in pieces} <= {"extract", "direct"}


def test_a_listener_on_a_field_that_is_not_there_is_refused() -> None:
    rlm = RLM("query -> answer")
    assert {listener.signature_field_name for listener in listeners(rlm)} == {"reasoning", "code", "answer"}
    with pytest.raises(ConfigurationError, match="no field 'anwser': there are reasoning, code, answer"):
        listeners(rlm, "anwser")


REPLIES = [
    code("x = [1]\n[y for y in x]", "A `plan`.\n\nOf two parts."),
    "Plan.\n\n```python\ntext = '''\n```js\n'''\n```\nand then\n```python\nprint(text)\n```\n",
    "[[ ## reasoning ## ]]\nA plan.\n\n[[ ## code ## ]]\nprint(1)\nx[[0]]\n\n[[ ## completed ## ]]",
    "~~~py\nprint(1)\n~~~",
    "Only words, with ``` in them.",
    "```js\nalert(1)\n```\n```python\nx\n```",
]


@given(st.sampled_from(REPLIES), st.lists(st.integers(1, 12), min_size=1, max_size=30))
def test_fields_are_told_apart_however_a_reply_is_cut(reply: str, cuts: list[int]) -> None:
    """The code is that which will run, and no piece is held back for longer than its line."""
    fields, found, at = Fields(), {"reasoning": "", "code": ""}, 0
    sizes = iter(cuts * len(reply))
    while at < len(reply):
        size = next(sizes)
        for name, piece in fields.push(reply[at : at + size]):
            found[name] += piece
        at += size
    for name, piece in fields.end():
        found[name] += piece
    assert found["code"].strip("\n") == find_code(reply).code
    if not found["code"]:
        assert found["reasoning"] == reply


def test_a_stream_can_be_served_as_server_sent_events(sandbox: Environment) -> None:
    """DSPy's ``streaming_response`` takes no status messages; those of runs are events all the same."""
    rlm = RLM("query -> answer", interpreter_factory=sandbox, sub_lm=ScriptedLM(sub))
    program = dspy.streamify(rlm, is_async_program=True)

    async def main() -> list[str]:
        return await consume(dspy.streaming.streaming_response(program(query="q")))

    with dspy.context(lm=ScriptedLM([code("llm_query('x')"), code("SUBMIT('a')")])):
        events = asyncio.run(main())
    assert all(event.startswith("data: ") and event.endswith("\n\n") for event in events)
    assert 'data: {"status": "Turn 1 of 20: asking the model for code..."}\n\n' in events
    assert events[-1] == "data: [DONE]\n\n"
    told = RunStatus("Turn 1", ev.TurnStarted(turn=1))
    again = pickle.loads(pickle.dumps(told))
    assert (again.message, again.event, str(again)) == (told.message, told.event, str(told))


def test_a_listener_on_an_rlm_inside_a_tool_hears_that_one(sandbox: Environment) -> None:
    inner = RLM("text -> found", interpreter_factory=sandbox)

    def search(text: str) -> str:
        """A run in a tool."""
        return str(inner(text=text).found)

    rlm = RLM("query -> answer", tools=[search], interpreter_factory=sandbox)
    ours, theirs = code("SUBMIT(search('t'))", "Let it search."), code("SUBMIT(text)", "Search here.")
    heard = listeners(inner, "reasoning")
    program = dspy.streamify(rlm, stream_listeners=heard, is_async_program=True)

    async def main() -> list[Any]:
        return await consume(program(query="q"))

    with dspy.context(lm=ScriptedLM(lambda call: theirs if "Variable `text`" in call.prompt else ours)):
        items = asyncio.run(main())
    assert items[-1].answer == "t"
    assert "".join(i.chunk for i in items if isinstance(i, StreamResponse)) == "Search here."
