"""Sessions: calls that go on with what earlier ones made; saved, killed, and resumed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.primitives.code_interpreter import FinalOutput
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, LimitReached, RecordingError, RLMSession, SessionError, environments, replay
from rlm_dspy._aio import threads
from rlm_dspy.definitions import definitions
from rlm_dspy.environments import sessions
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

EXTRACTED = "[[ ## answer ## ]]\n{}\n\n[[ ## completed ## ]]"


def program(sandbox: Any, signature: Any = "context, query -> answer", **options: Any) -> RLM:
    return RLM(signature, interpreter=sandbox, **options)


def outputs(prediction: dspy.Prediction) -> list[str]:
    return [turn.output for turn in prediction.trajectory]


# ------------------------------------------------------------------------------------------------------ calls


def test_variables_functions_and_imports_persist(sandbox: Environment) -> None:
    root = ScriptedLM(
        [
            code("import math\nseen = [len(context)]\ndef grow(x): seen.append(x); return seen\nSUBMIT('one')"),
            code("SUBMIT(str(grow(math.floor(2.5))))"),
        ]
    )
    with dspy.context(lm=root), program(sandbox).session() as session:
        assert session(context="abc", query="first?").answer == "one"
        assert session(query="second?").answer == "[3, 2]"
    assert [call.outputs["answer"] for call in session.history] == ["one", "[3, 2]"]
    assert [len(call.trajectory) for call in session.history] == [1, 1]
    given = [dict(call.inputs) for call in session.history]
    assert given == [{"context": "abc", "query": "first?"}, {"query": "second?"}]


def test_the_current_inputs_have_the_stable_names_and_older_ones_numbers(sandbox: Environment) -> None:
    """What the prompt says of `context` is true of `context` (alexzhang13/rlm keeps the first one for ever)."""
    look = "print(context, query, context_0, query_0, sorted(n for n in SHOW_VARS() if n[-1].isdigit()))"
    root = ScriptedLM(
        [
            code("context = 'rebound by code'\nSUBMIT('1')"),
            code(look),
            code("SUBMIT('2')"),
            code(look),
            code("SUBMIT('3')"),
        ]
    )
    with dspy.context(lm=root), program(sandbox).session() as session:
        session(context="old", query="a")
        second = session(query="b")
        third = session(context="new", query="b")
    assert outputs(second)[0] == "old b old a ['context_0', 'query_0', 'query_1']"
    assert outputs(third)[0] == "new b old a ['context_0', 'context_1', 'query_0', 'query_1', 'query_2']"
    told = root.calls[3].prompt
    assert "`context` = 'new'" in told and "`context_0`, `query_0`, `query_1`" in told


def test_variables_of_code_with_the_numbered_names_do_not_stand_in_for_inputs(sandbox: Environment) -> None:
    clobbering = "context_0 = 'mine'\ncontext_1 = 'mine too'\nquery_1 = 5\ncontext = None\nSUBMIT('x')"
    lm = ScriptedLM([code(clobbering)] + [code("SUBMIT(f'{context} {context_0} {query}')")] * 2)
    with dspy.context(lm=lm), program(sandbox).session() as session:
        session(context="first", query="q0")
        assert session(query="q1").answer == "first first q1"
        assert session(context="second").answer == "second first q1"


def test_the_conversation_only_grows(sandbox: Environment) -> None:
    """Each request of all calls is a prefix of the next one; also after a limit, and earlier answers are in view."""
    root = ScriptedLM(
        [
            code("x = 1\nprint('look')"),
            code("SUBMIT('first answer')"),
            code("print(x)"),
            code("print(x + 1)"),
            EXTRACTED.format("second answer"),
            code("SUBMIT('third answer')"),
        ]
    )
    with dspy.context(lm=root), program(sandbox, max_iters=2).session() as session:
        for query in "abc":
            last = session(context="c", query=query)
    assert last.answer == "third answer"
    acts = [call.messages for call in root.calls if call.number != 4]
    for earlier, later in itertools.pairwise(acts):
        assert later[: len(earlier)] == earlier
    text = json.dumps(acts[-1])
    assert "FINAL: {'answer': 'first answer'}" in text
    assert "second answer" in text, "an answer that was extracted is in view as well"
    roles = [message["role"] for message in acts[-1][1:]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_a_large_input_crosses_once(sandbox: Environment) -> None:
    sent: list[str] = []

    class Counting(type(sandbox())):  # type: ignore[misc]
        async def set(self, values: Any) -> None:
            sent.extend(values)
            await super().set(values)

    root = ScriptedLM(lambda call: code("SUBMIT(str(len(context)))"))
    with dspy.context(lm=root), program(lambda: Counting(sandbox)).session() as session:
        for query in "abc":
            assert session(**({"context": "x" * 1_000_000} if query == "a" else {}), query=query).answer == "1000000"
    assert sent == ["context_0", "query_0", "query_1", "query_2"]


def test_async(sandbox: Environment) -> None:
    async def main() -> list[str]:
        async with program(sandbox).session() as session:
            first = await session.acall(context="c", query="a")
            return [first.answer, (await session.acall(query="b")).answer]

    with dspy.context(lm=ScriptedLM([code("n = 1\nSUBMIT(n)"), code("SUBMIT(n + 1)")])):
        assert asyncio.run(main()) == ["1", "2"]


def test_two_calls_at_once_are_refused_and_the_session_goes_on(sandbox: Environment) -> None:
    entered, leave = threading.Event(), threading.Event()

    def policy(call: Call) -> str:
        entered.set()
        assert leave.wait(20)
        return code("SUBMIT('done')")

    root = ScriptedLM(policy)
    with program(sandbox).session() as session:
        answers: list[str] = []

        def work() -> None:
            with dspy.context(lm=root):
                answers.append(session(context="c", query="q").answer)

        thread = threading.Thread(target=work)
        thread.start()
        assert entered.wait(20)
        with dspy.context(lm=root), pytest.raises(SessionError, match="busy with another call"):
            session(context="c", query="q")
        leave.set()
        thread.join(20)
        with dspy.context(lm=root):
            answers.append(session(query="q").answer)
    assert answers == ["done", "done"]
    with pytest.raises(SessionError, match="is closed"):
        session(query="q")


def test_a_forked_process_leaves_the_session_of_its_parent_alone(
    sandbox: Environment, in_python: Callable[..., Any]
) -> None:
    script = """
import os, dspy
from rlm_dspy import RLM, SessionError
from rlm_dspy.testing import ScriptedLM, code
rlm = RLM("context -> answer", interpreter="subprocess", guidance=False)
dspy.configure(lm=ScriptedLM(lambda call: code("n = globals().get('n', 0) + 1\\nSUBMIT(n)")))
session = rlm.session()
session(context="x")
child = os.fork()
if not child:
    try:
        session()
    except SessionError as error:
        print(error, flush=True)
    session.close()
    os._exit(0)
os.waitpid(child, 0)
print(session().answer)
session.close()
"""
    process = in_python(script)
    out, err = process.communicate(timeout=60)
    assert "forked from" in out and out.splitlines()[-1] == "2", (out, err)


def test_sessions_that_nobody_has_any_more_let_others_in(
    sandbox: Environment,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., bool],
) -> None:
    monkeypatch.setenv(sessions.VARIABLE, str(sessions.slots.taken + 2))
    monkeypatch.setattr(sessions, "STALL_SECONDS", 0.2)
    rlm = program(sandbox, "context -> answer", guidance=False)
    with dspy.context(lm=ScriptedLM(lambda call: code("SUBMIT(context)"))):
        for number in range(5):
            # Never closed.
            assert rlm.session()(context=f"{number}").outcome == "submitted"
        kept = [rlm.session() for _ in range(2)]
        for session in kept:
            session(context="kept")
        waiting = threads.submit(rlm, context="x")
        says = f"sandbox sessions are open, and more wait until some are closed; {sessions.VARIABLE}"
        assert eventually(lambda: says in caplog.text) and not waiting.done()
        for session in kept:
            session.close()
        assert waiting.result(timeout=20).answer == "x"


def test_what_was_never_given_is_an_error_that_says_so(sandbox: Environment) -> None:
    with dspy.context(lm=ScriptedLM([code("SUBMIT('x')")])), program(sandbox).session() as session:
        with pytest.raises(SessionError, match=r"\['context'\] were never given in this session.*session\(context="):
            session(query="q")
        with pytest.raises(ValueError, match="Unexpected inputs"):
            session(context="c", query="q", other=1)
        assert session(context="c", query="q").answer == "x"
    with pytest.raises(ConfigurationError, match="'context_0' is the name that a session gives"):
        program(sandbox, "context, context_0 -> answer").session()
    with pytest.raises(ConfigurationError, match="a session has no max_iters of its own"):
        program(sandbox).session(max_iters=3)


def test_an_input_that_cannot_be_sent_leaves_the_session_as_it_was(sandbox: Environment) -> None:
    root = ScriptedLM(lambda call: code("SUBMIT(str(context) + str(sorted(n for n in SHOW_VARS() if 'context' in n)))"))
    with dspy.context(lm=root), program(sandbox, "context: Any, query -> answer").session() as session:
        assert session(context=1, query="a").answer == "1['context', 'context_0']"
        if sandbox.name != "inprocess":
            with pytest.raises(ConfigurationError, match="cannot be sent into the sandbox"):
                session(context=threading.Lock(), query="b")
        assert session(query="c").answer == "1['context', 'context_0']"


@pytest.mark.parametrize("on_limit", ["extract", "raise"])
def test_a_call_that_fails_leaves_the_session_usable(sandbox: Environment, on_limit: Any) -> None:
    root = ScriptedLM(
        [
            Reply(error=dspy.lm15.InvalidRequestError("bad")),
            code("a = 1"),
            EXTRACTED.format("guess"),
            code("SUBMIT(a + 1)"),
        ]
    )
    rlm = program(sandbox, on_limit=on_limit, max_iters=1)
    with dspy.context(lm=root), rlm.session() as session:
        with pytest.raises(Exception, match="bad"):
            session(context="c", query="a")
        if on_limit == "raise":
            with pytest.raises(LimitReached):
                session(query="b")
        else:
            assert session(query="b").outcome == "extracted"
        assert session(query="c").answer == "2"
    assert [str(call.outcome) for call in session.history] == ["failed", "extracted", "submitted"]
    assert "bad" in (session.history[0].outcome.error or "")
    history = session.to_history()
    assert isinstance(history, dspy.History)
    assert [message["answer"] for message in history.messages] == ["guess", "2"]
    assert [message["query"] for message in history.messages] == ["b", "c"]


def test_an_interpreter_that_died_is_replaced_and_the_root_is_told(no_leaks: None) -> None:
    root = ScriptedLM(
        [
            code("kept = 1\nSUBMIT('x')"),
            code("import os\nos.kill(os.getpid(), 9)"),
            code("print(context, context_0, query_0, 'kept' in globals())\nSUBMIT('y')"),
        ]
    )
    with dspy.context(lm=root), program("subprocess").session() as session:
        session(context="c", query="a")
        second = session(query="b")
    assert second.answer == "y" and "c c a False" in outputs(second)[1]
    assert "kept" in second.trajectory[0].lost


def test_an_interpreter_that_ended_between_calls_is_replaced(no_leaks: None) -> None:
    source = "import os, threading, time\nkept = 1\nthreading.Timer(0.2, os._exit, (1,)).start()\nSUBMIT('x')"
    root = ScriptedLM([code(source), code("print(context_0, context, 'kept' in globals())\nSUBMIT('y')")])
    with dspy.context(lm=root), program("subprocess").session() as session:
        session(context="c", query="a")
        interpreter = session.opened
        assert interpreter is not None

        async def gone() -> bool:
            try:
                return "kept" not in (await interpreter.variables())
            except dspy.CodeInterpreterError:
                return True

        async def wait() -> None:
            async with asyncio.timeout(20):
                while not await gone():
                    await asyncio.sleep(0.01)

        asyncio.run(wait())
        second = session(query="b")
    assert second.answer == "y" and "c c False" in outputs(second)[0]
    assert "had to be started anew" in root.calls[-1].prompt


def test_limits_are_each_calls_own_and_usage_adds_up(sandbox: Environment) -> None:
    root = ScriptedLM(lambda call: code("r = llm_query(query, fresh=True)\nSUBMIT(r)"))
    sub = ScriptedLM(lambda call: call.prompt)
    rlm = program(sandbox, sub_lm=sub, max_llm_calls=1)
    with dspy.context(lm=root), rlm.session() as session:
        found = [session(context="c", query=q) for q in "abc"]
        assert [p.answer for p in found] == ["a", "b", "c"], "each call has a limit of its own"
        total = session.usage
    assert total["calls"] == 3 == sum(p.usage["calls"] for p in found)
    assert total["turns"] == 3 and total["deepest"] == 0 and set(total["by_depth"]) == {"0"}
    for column in ("lm_calls", "input_tokens", "output_tokens"):
        assert total[column] == sum(p.usage[column] for p in found)
    with dspy.context(lm=ScriptedLM(lambda c: code("SUBMIT(llm_query(query, fresh=True))"))):
        with rlm.session(max_llm_calls=2) as session:
            assert [session(context="c", query=q).answer for q in "ab"] == ["a", "b"]
            refused = rlm.with_options(max_iters=1)
            session.program = refused
            third = session(query="c")
    assert "0 of 2 left" in outputs(third)[0]


# ------------------------------------------------------------------------------------------------------ save, resume

EVERYTHING = """
import collections, dataclasses, enum, functools, math, re
from collections import Counter
@dataclasses.dataclass
class Point:
    x: int
    def double(self): return self.x * 2
class Deep(Point):
    pass
class Colour(enum.Enum):
    RED = 1
Pair = collections.namedtuple("Pair", "a b")
@functools.lru_cache
def cached(x):
    return x + base
base = 3
triple = lambda v: v * base
if base:
    def nested(): return "nested"
class Slow:
    __slots__ = ("a",)
point, deep = Point(4), [Deep(5), {"inner": Point(6)}]
pair, colour = Pair(1, (2, 3)), Colour.RED
counter, groups, queue = Counter("aab"), collections.defaultdict(list, {"a": [1]}), collections.deque([1, 2], 5)
pattern, part = re.compile("A+", re.I), functools.partial(max, 2)
table = {"sqrt": math.sqrt, "cached": cached, "Point": Point, (1, 2): {3}}
odd = [float("inf"), b"\\xff", "\\ud800", 2 ** 100, {1, "x"}, frozenset("a"), 1j, range(3)]
generator, slow = (i for i in range(3)), Slow()
asked = llm_query("hello")
SUBMIT("ok")
"""
CHECK = """
assert point == Point(4) and point.double() == 8 and type(deep[0]) is Deep and deep[1]["inner"] == Point(6)
assert pair == Pair(1, (2, 3)) and pair.b == (2, 3) and colour is Colour.RED
assert cached(1) == 4 and cached.cache_info().misses == 1 and triple(2) == 6 and nested() == "nested"
assert type(counter) is Counter and counter["a"] == 2 and groups["new"] == [] and groups["a"] == [1]
assert queue.maxlen == 5 and list(queue) == [1, 2] and pattern.match("aa") and part(1) == 2 and part(7) == 7
assert table["cached"] is cached and table["Point"] is Point and table["sqrt"] is math.sqrt and table[1, 2] == {3}
assert odd == [float("inf"), b"\\xff", "\\ud800", 2 ** 100, {1, "x"}, frozenset("a"), 1j, range(3)] and asked == "sub"
assert context == context_0 == "abc" and query == query_1 == "second?" and query_0 == "first?"
print(sorted({"generator", "slow", "Slow", "Point"} & set(globals())))
"""


def saved(sandbox: Any, path: Path) -> tuple[RLMSession, RLM]:
    rlm = program(sandbox, sub_lm=ScriptedLM(lambda call: "sub"))
    with dspy.context(lm=ScriptedLM([code(EVERYTHING)])), rlm.session() as session:
        assert session(context="abc", query="first?").answer == "ok", session.history
        assert set(session.save(path)) == {"generator", "slow"} == set(session.unsaved)
    return session, rlm


@pytest.mark.parametrize("name", ["subprocess", "inprocess", "local"])
def test_a_saved_session_goes_on_in_every_environment(name: str, tmp_path: Path, no_leaks: None) -> None:
    before, rlm = saved(environments.get(name), tmp_path / "s")
    root = ScriptedLM([code(CHECK), code("SUBMIT('went on')")])
    with dspy.context(lm=root), rlm.resume(tmp_path / "s") as session:
        assert session.report is not None and set(session.report.unsaved or {}) == {"generator", "slow"}
        assert "a value of type generator cannot be saved" in session.unsaved["generator"]
        assert {"Point", "cached", "counter", "math", "context_0", "query_0"} <= set(session.report.restored)
        assert session.usage["lm_calls"] == before.usage["lm_calls"] == 2
        second = session(query="second?")
        assert second.answer == "went on" and outputs(second)[0] == "['Point', 'Slow']", outputs(second)
    first = session.history[0]
    assert first.outputs == before.history[0].outputs and first.outcome == "submitted"
    assert list(first.trajectory) == list(before.history[0].trajectory)
    told = root.calls[0].prompt
    assert "These could not be kept and are gone: `generator`" in told and "`slow`" in told
    assert "could not be kept" not in json.dumps(root.calls[1].messages[-1])
    # The prefix that a provider has cached is still one.
    contract = before.conversation.messages()[0]
    assert contract["content"] in [message["content"] for message in root.calls[0].messages]


@pytest.mark.parametrize("name", ["subprocess", "inprocess"])
def test_names_of_builtins_that_code_has_taken_disturb_nothing(name: str, tmp_path: Path, no_leaks: None) -> None:
    taken = (
        "list, str, type, dict, len, set, isinstance, callable, getattr, hash, repr, exec, Exception = range(13)\n"
        "class Record:\n    pass\n"
        "import collections\nfound = {(1, 2): collections.Counter('aab')}\nprint = globals = 5\nSUBMIT('one')"
    )
    check = "SUBMIT(f'{list} {str} {type} {len} {Record.__name__} {found[1, 2].most_common(1)}')"
    rlm = RLM("context -> answer", interpreter=name, guidance=False, context_window=9_000)
    kept = "0 1 2 4 Record [('a', 2)]"
    lm = ScriptedLM([code(taken), code(check), code(check)])
    with dspy.context(lm=lm):
        with rlm.session() as session:
            session(context="x")
            assert session().answer == kept and "made before are still there" in lm.calls[1].prompt
            assert session.save(tmp_path / "saved") == {}
        with rlm.resume(tmp_path / "saved") as session:
            assert session.report is not None and not session.report.unsaved
            assert session().answer == kept


def test_a_resumed_session_can_be_saved_and_resumed_again(sandbox: Environment, tmp_path: Path) -> None:
    _, rlm = saved(sandbox, tmp_path / "s")
    with rlm.resume(tmp_path / "s") as session:
        session.save(tmp_path / "t")
    with dspy.context(lm=ScriptedLM([code(CHECK), code("SUBMIT('x')")])), rlm.resume(tmp_path / "t") as session:
        assert outputs(session(query="second?"))[0] == "['Point', 'Slow']"


def test_a_key_that_is_a_word_of_ours_spoils_no_saved_session(
    sandbox: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "returned")
    _, rlm = saved(sandbox, tmp_path / "s")
    with rlm.resume(tmp_path / "s") as session:
        kinds = {event.kind for event in session.history[0].trajectory.events}
    assert "returned" in kinds


STEPS = (
    "n = n + 1",
    "items.append(n)",
    "held = {n: items[:], (n, 'x'): {n}}",
    "def f(): return n * 10",
    "items = items + [f()]",
    "box = Box(items[:])",
    "items = [f() for _ in items]",
    "f = lambda: n + 7",
    "import math as m\nn = m.floor(n + 2.5)",
)
BOX = "class Box:\n    def __init__(self, x): self.x = x\n    def get(self): return (self.x, f())"
BEGIN = f"n, items, held = 0, [], {{}}\ndef f(): return n\n{BOX}\nbox = Box(0)"
SHOWN = "repr((n, items, held, f(), box.get()))"


@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.booleans()), max_size=6))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_saving_and_resuming_anywhere_changes_nothing(tmp_path: Path, steps: list[tuple[str, bool]]) -> None:
    expected: dict[str, Any] = {}
    for source in (BEGIN, *(step for step, _ in steps)):
        exec(source, expected)
    replies = [code(f"{source}\nSUBMIT('.')") for source in (BEGIN, *(step for step, _ in steps))]
    rlm = program("inprocess", "q -> answer")
    with dspy.context(lm=ScriptedLM([*replies, code(f"SUBMIT({SHOWN})")])):
        session = rlm.session()
        session(q="begin")
        for _, save in steps:
            session(q="go on")
            if save:
                assert session.save(tmp_path / "s") == {}
                session.close()
                session = rlm.resume(tmp_path / "s")
        with session:
            assert session(q="show").answer == eval(SHOWN, expected)


class Foreign:
    """Somebody else's interpreter, which knows what JSON has."""

    def __init__(self) -> None:
        self.tools: dict[str, Any] = {}
        self.ns: dict[str, Any] = {"__name__": "theirs"}

    def start(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def execute(self, source: str, variables: dict[str, Any] | None = None) -> Any:
        import contextlib
        import io

        class Final(BaseException):
            pass

        def submit(**outputs: Any) -> None:
            raise Final(outputs)

        def bridged(tool: Any) -> Any:
            return lambda *a, **k: json.loads(json.dumps(tool(*json.loads(json.dumps(a)), **k)))

        tools = {name: bridged(tool) for name, tool in self.tools.items()}
        self.ns |= {**json.loads(json.dumps(variables or {})), **tools, "SUBMIT": submit}
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(source, self.ns)
        except Final as final:
            return FinalOutput(final.args[0])
        except Exception as error:
            raise dspy.CodeExecutionError(f"{type(error).__name__}: {error}") from error
        return printed.getvalue() or None


def test_a_foreign_interpreter_too(tmp_path: Path) -> None:
    """Everything crosses as JSON there."""
    rlm = program(Foreign)
    first = "t = (1, {2})\nd = {3: float('inf')}\nimport math\ndef f(): return math.pi\nb = b'x'\nSUBMIT(answer='x')"
    with dspy.context(lm=ScriptedLM([code(first)])), rlm.session() as session:
        session(context="c", query="a")
        assert set(session.save(tmp_path / "s")) == {"b"}
    root = ScriptedLM([code("print(t, d, f(), context, query_0)"), code("SUBMIT(answer='y')")])
    with dspy.context(lm=root), rlm.resume(tmp_path / "s") as session:
        assert outputs(session(query="b"))[0] == "(1, {2}) {3: inf} 3.141592653589793 c a"


def test_what_is_too_large_to_leave_the_sandbox_is_listed(tmp_path: Path, no_leaks: None) -> None:
    rlm = program(environments.subprocess(max_value=2_000_000))
    with dspy.context(lm=ScriptedLM([code("big = 'x' * 3_000_000\nsmall = 1\nSUBMIT('x')")])), rlm.session() as session:
        session(context="c", query="q")
        assert "larger than" in session.save(tmp_path / "s")["big"]


def test_saving_writes_all_or_nothing_and_no_pickle(sandbox: Environment, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"before")
    rlm = program(sandbox)
    with rlm.session() as session:
        assert session.save(tmp_path / "empty") == {}
        with pytest.raises(OSError):
            session.save(tmp_path / "missing" / "s")
    assert path.read_bytes() == b"before"
    _, rlm = saved(sandbox, path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "s"], "a temporary file is left"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert all(b"\x80\x04\x95" not in archive.read(name) for name in archive.namelist())


def test_saving_replaces_nothing_but_files(sandbox: Environment, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with program(sandbox).session() as session:
        for path in (tmp_path, tmp_path / "pipe"):
            with pytest.raises(OSError, match="no file"):
                session.save(path)
    assert (tmp_path / "pipe").is_fifo() and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_file_that_is_foreign_newer_or_torn_is_refused(sandbox: Environment, tmp_path: Path) -> None:
    path = tmp_path / "s"
    _, rlm = saved(sandbox, path)
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], whole[:-30], whole.replace(b"Point", b"Paint", 1)):
        path.write_bytes(content)
        with pytest.raises(RecordingError, match="not a whole saved session"):
            rlm.resume(path)
    with pytest.raises(RecordingError, match="no saved session in"):
        rlm.resume(tmp_path / "nothing")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("session.json", json.dumps({"format": "rlm-dspy session", "schema": 99}))
    with pytest.raises(RecordingError, match=r"has schema 99, .* upgrade it"):
        rlm.resume(path)
    path.write_bytes(whole)
    with pytest.raises(ConfigurationError, match="the session is of the signature"):
        program(sandbox, "q -> a").resume(path)


def test_the_last_definition_of_each_name_is_found() -> None:
    cells = [
        "def f(): return 1\nclass A: pass",
        "this is no python",
        "@decorate(\n    1)\ndef f():\n    # why\n    return 2\nx = y = lambda: 3; z = 4",
        "try:\n    async def g(): pass\nexcept E:\n    def h(): pass",
        "for i in []:\n    class B(A):\n        def f(self): pass",
        "n: int = 5\na, b = 1, 2\nself.x = 1",
    ]
    found = definitions(cells)
    assert sorted(found) == ["A", "B", "f", "g", "h", "n", "x", "y", "z"]
    assert found["f"].source == "@decorate(\n    1)\ndef f():\n    # why\n    return 2"
    assert found["x"].source == found["y"].source == "x = y = lambda: 3"
    assert found["h"].source == "def h():\n    pass" and found["A"].order < found["f"].order < found["B"].order


# ------------------------------------------------------------------------------------------------------ kill -9

SCRIPT = """
import sys, dspy
from rlm_dspy import RLM
from rlm_dspy.testing import Reply, ScriptedLM, code

def tool(x: int) -> list:
    "Once."
    print("called", flush=True)
    return [x, x + 1]

root = ScriptedLM([
    code("import os\\ntotal = tool(1)\\nseen = llm_query(context[:3])\\ndef f(): return total"),
    code("SUBMIT('first')"),
    code("total.append(9)\\nmore = llm_query_batched(['p', 'q'])"),
    Reply(code("SUBMIT('never')"), delay=600),
])
rlm = RLM("context, query -> answer", interpreter="subprocess", tools=[tool], sub_lm=ScriptedLM(lambda c: c.prompt * 2))
with dspy.context(lm=root), rlm.session(sys.argv[1]) as session:
    session(context="abc" * 1_000_000, query="one")
    session(query="two")
"""


def test_a_killed_process_is_resumed_from_its_journal(
    in_python: Callable[..., Any], tmp_path: Path, eventually: Callable[..., bool], no_leaks: None
) -> None:
    folder = tmp_path / "j"
    process = in_python(SCRIPT, str(folder))
    events = folder / "events.jsonl"
    assert eventually(lambda: events.exists() and events.read_bytes().count(b'"turn_started"') == 4), process.poll()
    process.send_signal(signal.SIGKILL)
    process.wait()

    def tool(x: int) -> list[int]:
        """Once."""
        raise AssertionError("a tool was called while resuming")

    def refuse(call: Call) -> str:
        raise AssertionError("a language model was called while resuming")

    rlm = program("subprocess", tools=[tool], sub_lm=ScriptedLM(refuse))
    with pytest.raises(SessionError, match="holds a session already"):
        rlm.session(folder)
    root = ScriptedLM([code("print(seen, f(), more, len(context), query_0, query_1, query)"), code("SUBMIT('third')")])
    with dspy.context(lm=root), rlm.resume(folder) as session:
        assert root.calls == [] and session.report is not None and session.report.differences == ()
        assert {"total", "seen", "f", "more"} <= set(session.report.restored)
        one, two = session.history
        assert one.outputs == {"answer": "first"} and one.outcome == "submitted" and len(one.trajectory) == 2
        assert two.outcome == "failed" and two.outcome.limit == "interrupted" and len(two.trajectory) == 1
        # The reply that was under way when it was killed is not known; all others were counted.
        assert (session.usage["calls"], session.usage["turns"]) == (3, 3)
        assert session.usage["by_role"]["act"]["lm_calls"] == 3
        third = session(query="three")
        assert outputs(third)[0] == "abcabc [1, 2, 9] ['pp', 'qq'] 3000000 one two three"
    messages = [message["content"] for message in root.calls[0].messages]
    assert any("seen = llm_query" in text for text in messages) and "# Next task" in messages[-1]
    # It went on in the same journal, and from there once more.
    with dspy.context(lm=ScriptedLM([code("SUBMIT(f())")])), rlm.resume(folder) as session:
        assert [str(call.outcome) for call in session.history] == ["submitted", "failed", "submitted"]
        assert session.history[2].outputs == {"answer": "third"} and session.usage["turns"] == 5
        assert session(query="four").answer == "[1, 2, 9]"


def test_a_later_call_of_a_session_is_not_replayed_alone(sandbox: Environment) -> None:
    root = ScriptedLM([code("x = 1\nSUBMIT(x)"), code("SUBMIT(x)")])
    with dspy.context(lm=root), program(sandbox).session() as session:
        first, second = session(context="c", query="a"), session(query="b")
    assert replay(first.trajectory).answer == "1"
    with pytest.raises(RecordingError, match=r"call 1 of a session .*rlm\.resume\(folder\)"):
        replay(second.trajectory)


def test_a_resumed_journal_says_what_its_code_gave_otherwise(sandbox: Environment, tmp_path: Path) -> None:
    source = "import os\nx = os.urandom(8).hex()\nprint(x)"
    rlm = program(sandbox)
    with dspy.context(lm=ScriptedLM([code(source), code("SUBMIT('x')")])), rlm.session(tmp_path / "j") as session:
        session(context="c", query="a")
    with rlm.resume(tmp_path / "j") as session:
        assert session.report is not None
        assert [(d.turn, d.about) for d in session.report.differences] == [(1, "output")]
