"""What other implementations got wrong about trees, and what their users asked for: each holds here.

    tokens, money    one account of the tree, whatever started the call; no child gets the whole limit again
    models           the named one answers and is billed under its name; an unknown name is an error
    children         have their parent's strategy, aids, settings, and a task of their own
    width            one for the whole tree, and no deadlock in it
    failures         are errors, and can be told from answers
    state            what code changed stays changed; earlier calls are there for later ones
"""

from __future__ import annotations

import ast
import asyncio
import re
import threading
from typing import Any

import dspy
import pydantic
import pytest

from rlm_dspy import RLM, subscribe
from rlm_dspy.environments import sessions
from rlm_dspy.environments.base import Environment
from rlm_dspy.events import ChildEnded
from rlm_dspy.testing import Call, Reply, ScriptedLM, code, oracle

LAST = "No more code can run"


def task_of(call: Call) -> str:
    """The first message of the run that this call belongs to, with its task."""
    return call.own[0]["content"]


def played(tasks: dict[str, list[str]], *, model: str = "scripted/lm", **settings: Any) -> ScriptedLM:
    """An LM that plays every run by the list of sources for the word that stands in its task; the last one again."""

    def policy(call: Call) -> str:
        if LAST in call.prompt:
            return "best"
        steps = next(steps for word, steps in tasks.items() if word in task_of(call))
        return code(steps[min(call.turn, len(steps) - 1)])

    return ScriptedLM(policy, model=model, **settings)


def ask(lm: ScriptedLM, sandbox: Environment, sub: Any = None, task: str = "ROOT", **options: Any) -> dspy.Prediction:
    options = {"guidance": False, "sub_lm": sub or ScriptedLM(lambda call: "fine", model="scripted/sub"), **options}
    program = RLM("query -> answer: str", interpreter=sandbox, **options)
    with dspy.context(lm=lm):
        prediction: dspy.Prediction = program(query=task)
    return prediction


# ------------------------------------------------------------------------------------------------ tokens and money


def test_a_child_has_what_is_left_of_the_tree_and_not_the_whole_limit_again(sandbox: Environment) -> None:
    lm = played(
        {
            "CHILD": ["llm_query(prompt * 200)\nSUBMIT(str(budget()))"],
            "ROOT": [
                "told = [budget(), rlm_query('CHILD one'), rlm_query('CHILD two'), budget()]",
                "print(*told, sep='|')",
                "SUBMIT('x')",
            ],
        }
    )
    limits = {"max_tokens": 50_000, "max_cost": 1.0, "max_llm_calls": 20, "max_seconds": 600, "max_depth": 3}
    prediction = ask(lm, sandbox, prices={"scripted/lm": (1, 1), "scripted/sub": (1, 1)}, **limits)
    first, one, two, last = map(ast.literal_eval, prediction.trajectory[1].output.split("|"))
    for name in ("tokens", "cost", "llm_calls"):
        assert first[name] > one[name] > two[name], name
        assert two[name] <= last[name] < first[name], "what was only held back for the child's last word is free again"
    assert first["tokens"] < 50_000 and one["seconds"] < first["seconds"]
    assert (first["depth"], one["depth"]) == (2, 1)


def test_what_a_submitting_child_held_back_is_free_for_the_next(sandbox: Environment) -> None:
    """A child reserves its last word. Many that never needed it must not use up the tree's tokens."""
    lm = played({"CHILD": ["SUBMIT('ok')"], "ROOT": ["print(rlm_query_batched([f'CHILD {n}' for n in range(24)]))"]})
    runs: list[Any] = []
    with subscribe(lambda event, run: runs.append(run) if run not in runs else None):
        prediction = ask(lm, sandbox, max_depth=2, max_iters=1, max_tokens=30_000, max_llm_calls=None, max_children=2)
    usage = prediction.usage
    assert prediction.trajectory[0].output.count("'ok'") == 24
    spent = usage["input_tokens"] + usage["output_tokens"]
    assert runs[0].ledger.tokens_left == 30_000 - spent > 5_000


@pytest.mark.parametrize("limit", ["max_cost", "max_tokens"])
def test_what_children_spend_adds_up_over_the_turns_until_the_limit_stops_the_root(
    limit: str, sandbox: Environment
) -> None:
    lm = played({"CHILD": ["SUBMIT(llm_query(prompt * 40))"], "ROOT": ["print(rlm_query(f'CHILD {budget()}'))"]})
    sub = ScriptedLM(lambda call: "word " * 400, model="scripted/sub")
    prices = {"scripted/lm": (1.0, 1.0), "scripted/sub": (1.0, 1.0)}
    most = {"max_cost": 0.02, "max_tokens": 20_000}[limit]
    prediction = ask(
        lm, sandbox, sub, max_depth=2, max_iters=200, max_llm_calls=None, prices=prices, **{limit: most}
    )
    usage = prediction.usage
    assert prediction.outcome == "extracted" and prediction.outcome.limit == limit
    assert usage["lm_calls"] == len(lm.calls) + len(sub.calls) and usage["children"] > 2
    # One call was under way, and the last word was asked for.
    assert usage["cost"] <= 0.02 + 0.005 and usage["input_tokens"] + usage["output_tokens"] <= 20_000 + 5_000


def test_one_model_as_root_and_sub_is_counted_for_both(sandbox: Environment) -> None:
    lm = played({"ROOT": ["print(llm_query('a'), llm_query('b'))\nSUBMIT('x')"]})
    usage = ask(lm, sandbox, ScriptedLM(lambda call: "fine")).usage
    assert usage["lm_calls"] == 3 and usage["by_role"]["sub"]["lm_calls"] == 2
    assert [row["model"] for row in usage["table"]] == ["scripted/lm", "scripted/lm"]


def test_a_limit_inside_an_evaluation_is_a_scored_answer_and_no_exception(sandbox: Environment) -> None:
    """Optimisers that measure a program must survive its limits."""
    lm = played({"few": ["SUBMIT('yes')"], "many": ["print(llm_query('x' * 20_000))"]})
    program = RLM("query -> answer: str", interpreter=sandbox, guidance=False, max_tokens=4_000, sub_lm=lm)
    examples = [dspy.Example(query=query, answer="yes").with_inputs("query") for query in ("few", "many", "few")]
    seen: list[str] = []

    def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> float:
        seen.append(str(prediction.outcome))
        return float(prediction.answer == example.answer)

    with dspy.context(lm=lm):
        result = dspy.Evaluate(devset=examples, metric=metric, num_threads=2, display_progress=False)(program)
    assert sorted(seen) == ["extracted", "submitted", "submitted"] and result.score == pytest.approx(66.67)


# ---------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    "call",
    [
        "llm_query('a', model='slow')",
        "llm_query_batched(['a', 'b'], model='slow')",
        "predict('text -> n: int', text='a', model='slow')",
        "predict_batched('text -> n: int', ['a'], model='slow')",
        "rlm_query('CHILD', model='slow')",
        "rlm_query_batched(['CHILD'], model='slow')",
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_an_unknown_model_is_an_error_that_names_the_known_ones_and_costs_nothing(
    depth: int, call: str, sandbox: Environment
) -> None:
    sub = ScriptedLM(lambda call: "fine", model="scripted/sub")
    lm = played({"ROOT": [f"print({call})", "SUBMIT('x')"]})
    prediction = ask(lm, sandbox, sub, max_depth=depth, models={"fast": sub, "big": lm})
    output = prediction.trajectory[0].output
    assert "no model named 'slow'; the models are 'fast', 'big'" in output
    assert not sub.calls and prediction.usage["calls"] == prediction.usage["children"] == 0


def test_at_the_last_level_the_named_model_answers_and_is_billed_under_its_name(sandbox: Environment) -> None:
    fast = ScriptedLM(lambda call: "by fast", model="scripted/fast")
    sub = ScriptedLM(lambda call: "by sub", model="scripted/sub")
    lm = played({"ROOT": ["print(rlm_query('a', text='t', model='fast'), rlm_query('b'))\nSUBMIT('x')"]})
    prediction = ask(lm, sandbox, sub, max_depth=1, models={"fast": fast})
    assert "by fast by sub" in prediction.trajectory[0].output
    rows = {(row["role"], row["model"]): row["lm_calls"] for row in prediction.usage["table"]}
    assert rows == {("act", "scripted/lm"): 1, ("sub", "scripted/fast"): 1, ("sub", "scripted/sub"): 1}


def test_a_child_by_a_named_model_is_billed_under_its_name_and_its_own_sub_calls_are_not(sandbox: Environment) -> None:
    cheap = played({"CHILD": ["SUBMIT(llm_query('leaf'))"]}, model="scripted/cheap")
    lm = played({"ROOT": ["print(rlm_query('CHILD', model='cheap'))\nSUBMIT('x')"]})
    prediction = ask(lm, sandbox, max_depth=2, models={"cheap": cheap})
    rows = {(row["role"], row["model"], row["depth"]): row["lm_calls"] for row in prediction.usage["table"]}
    assert rows == {("act", "scripted/lm", 0): 1, ("act", "scripted/cheap", 1): 1, ("sub", "scripted/sub", 1): 1}


# -------------------------------------------------------------------------------------------------------- children


def test_a_child_has_its_parents_strategy_aids_and_settings(sandbox: Environment) -> None:
    lm = played({"CHILD": ["SUBMIT(classify(text='t'))"], "ROOT": ["print(rlm_query('CHILD'))\nSUBMIT('x')"]})
    program = RLM(
        "query -> answer: str",
        interpreter=sandbox,
        sub_calls={"classify": "text -> label"},
        sub_lm=ScriptedLM(lambda call: "[[ ## label ## ]]\ngood\n\n[[ ## completed ## ]]"),
        guidance={"demonstration": False},
        max_depth=2,
        max_iters=7,
        max_output_chars=1_234,
    )
    program.act.signature = program.act.signature.with_instructions("Think like a librarian.")
    program.act.config = {"temperature": 0.25, "max_tokens": 777}
    heard: list[tuple[int, str]] = []
    with dspy.context(lm=lm), subscribe(lambda event, run: heard.append((event.depth, event.kind))):
        prediction = program(query="ROOT")
    assert "good" in prediction.trajectory[0].output
    root, child = lm.calls
    assert "Think like a librarian." in root.system and "Think like a librarian." in child.system
    assert root.request.config.temperature == child.request.config.temperature == 0.25
    assert root.request.config.max_tokens == child.request.config.max_tokens == 777
    for told in ("classify(text: str) -> str", "7 turns", "1,234 characters"):
        assert told in task_of(root) and told in task_of(child), told
    assert len(child.messages) == len(root.messages), "no demonstration for either"
    assert {(0, "run_started"), (1, "run_started"), (1, "executed"), (1, "run_ended")} <= set(heard)


def test_a_child_sees_its_task_beside_its_inputs_and_not_in_them(sandbox: Environment) -> None:
    lm = played(
        {"CHILD": ["SUBMIT(text[:4])"], "ROOT": ["print(rlm_query('CHILD: the first word', text='long ' * 9_000))"]}
    )
    prediction = ask(lm, sandbox, max_depth=2, max_iters=1)
    child = next(call for call in lm.calls if "CHILD" in task_of(call))
    assert "CHILD: the first word" in task_of(child) and "`text`" in task_of(child)
    assert len(task_of(child)) < 10_000 and "long" in prediction.trajectory[0].output


class Ticket(pydantic.BaseModel):
    number: int
    urgent: bool


class Triage(dspy.Signature):
    """Open tickets."""

    text: str = dspy.InputField()
    tickets: list[Ticket] = dspy.OutputField()


def test_structured_outputs_of_a_sub_call_a_child_and_the_root(sandbox: Environment) -> None:
    def reply(call: Call) -> str:
        return '[[ ## ticket ## ]]\n{"number": 7, "urgent": true}\n\n[[ ## completed ## ]]'

    one = dspy.Signature("text -> ticket: Ticket", custom_types={"Ticket": Ticket})
    lm = played(
        {
            "ROOT": [
                "found = [ticket(text='t'), *rlm_query(text='t')]\nprint(found[0].number + found[1].number)",
                "SUBMIT(found)",
            ],
            "Open tickets": ["SUBMIT([{'number': 8, 'urgent': 'no'}])"],
        }
    )
    child = RLM(Triage, interpreter=sandbox, guidance=False)
    program = RLM(
        dspy.Signature("query -> tickets: list[Ticket]", custom_types={"Ticket": Ticket}),
        interpreter=sandbox,
        guidance=False,
        sub_lm=ScriptedLM(reply),
        sub_calls={"ticket": one},
        child=child,
        max_depth=2,
    )
    with dspy.context(lm=lm):
        prediction = program(query="ROOT")
    assert prediction.trajectory[0].output == "15"
    assert prediction.tickets == [Ticket(number=7, urgent=True), Ticket(number=8, urgent=False)]


def test_a_question_asked_afresh_is_another_one_in_every_run_of_the_tree(sandbox: Environment) -> None:
    """Also where replies are cached: two runs that ask it afresh do not get each other's answer."""
    sub = ScriptedLM(lambda call: f"answer {call.number}", model="scripted/sub", cache=True)
    lm = played(
        {
            "CHILD": ["SUBMIT(llm_query('the same', fresh=True))"],
            "ROOT": [
                "mine = llm_query('the same', fresh=True)\n"
                "print(mine, llm_query('the same', fresh=True), *rlm_query_batched(['CHILD 1', 'CHILD 2']), sep='|')"
            ],
        }
    )
    prediction = ask(lm, sandbox, sub, max_depth=2, max_iters=1)
    assert len(set(prediction.trajectory[0].output.strip().split("|"))) == len(sub.calls) == 4


def test_signatures_made_up_by_code_are_kept_in_bounds_and_their_answers_remembered(sandbox: Environment) -> None:
    sub = ScriptedLM(lambda call: "[[ ## n ## ]]\n3\n\n[[ ## completed ## ]]", model="scripted/sub")
    source = (
        "for _ in range(2):\n"
        "    for k in range(40):\n"
        "        predict(f'text, part{k} -> n: int', **{'text': 't', f'part{k}': 'p'})\n"
    )
    lm = played({"ROOT": [source, "SUBMIT('x')"]})
    runs: list[Any] = []
    with subscribe(lambda event, run: runs.append(run)):
        prediction = ask(lm, sandbox, sub, max_llm_calls=100)
    assert prediction.outcome == "submitted" and len(runs[0].tree.adhoc) <= 16
    assert len(sub.calls) == prediction.usage["calls"] == 40, "asked once each, also where the predictor was let go"


# ----------------------------------------------------------------------------------------------------------- width


def test_the_width_holds_over_the_whole_tree(sandbox: Environment) -> None:
    """Three levels of batches, each wider than the limit: as many calls in flight as it says, and no more."""
    lock, full = threading.Lock(), threading.Event()
    now = most = 0

    def counted(answer: str) -> str:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
            if now == 4:
                full.set()
        # They wait for one another, but at most as long as it takes to see that more will not come.
        full.wait(30)
        with lock:
            now -= 1
        return answer

    sub = ScriptedLM(lambda call: counted("fine"), model="scripted/sub")
    leaf = "SUBMIT(str(llm_query_batched([f'{prompt} {n}' for n in range(6)])))"
    batch = "SUBMIT(str(rlm_query_batched([f'{prompt} LEAF {n}' for n in range(3)])))"
    root = "print(rlm_query_batched([f'MIDDLE {n}' for n in range(3)]))"
    lm = played({"LEAF": [leaf], "MIDDLE": [batch], "ROOT": [root, "SUBMIT('x')"]})
    prediction = ask(lm, sandbox, sub, max_depth=3, max_concurrency=4, max_llm_calls=None)
    assert prediction.usage["children"] == 12 and len(sub.calls) == 54
    assert most == prediction.usage["peak_width"] == 4


@pytest.mark.parametrize("width", [1, 2])
def test_runs_that_wait_for_children_hold_no_place_in_the_width(width: int, sandbox: Environment) -> None:
    """Modules and tools that run RLMs inside of a call do not either: nothing deadlocks."""
    inner = RLM("query -> answer: str", interpreter=sandbox, guidance=False, max_iters=2)

    class Within(dspy.Module):
        def forward(self, text: str) -> dspy.Prediction:
            return dspy.Prediction(label=inner(query=f"INNER {text}").answer)

        async def aforward(self, text: str) -> dspy.Prediction:
            return dspy.Prediction(label=(await inner.acall(query=f"INNER {text}")).answer)

    lm = played(
        {
            "INNER": ["SUBMIT('inner')"],
            "CHILD": ["SUBMIT(str(within_batched([f'{prompt} {n}' for n in range(3)])))"],
            "ROOT": ["print(rlm_query_batched(['CHILD a', 'CHILD b', 'CHILD c']))", "SUBMIT('x')"],
        }
    )
    prediction = ask(
        lm, sandbox, lm, max_depth=2, max_concurrency=width, max_llm_calls=None, sub_calls={"within": Within()}
    )
    assert prediction.trajectory[0].output.count("inner") == 9
    assert prediction.usage["peak_width"] <= width


# -------------------------------------------------------------------------------------------------------- failures


def test_a_failed_call_is_an_exception_and_a_failed_slot_is_no_answer(sandbox: Environment) -> None:
    """A vote over the answers can leave out what is none."""

    def reply(call: Call) -> Any:
        return Reply(error=dspy.lm15.InvalidRequestError("no")) if "bad" in call.prompt else "yes"

    source = (
        "answers = llm_query_batched(['one', 'bad', 'two'])\n"
        "print([a for a in answers if not isinstance(a, FailedCall)], answers[1].error)\n"
        "children = rlm_query_batched(['CHILD', 'DEAD'])\n"
        "print([type(c).__name__ for c in children])\n"
        "for call in (llm_query, rlm_query):\n"
        "    try:\n"
        "        print('answered', call('bad' if call is llm_query else 'DEAD'))\n"
        "    except RuntimeError as error:\n"
        "        print('raised', error)\n"
    )
    lm = played({"CHILD": ["SUBMIT('ok')"], "ROOT": [source, "SUBMIT('x')"]})
    dead = lm._scripted._answer

    def policy(call: Call) -> Any:
        return Reply(error=dspy.lm15.InvalidRequestError("gone")) if "DEAD" in task_of(call) else dead(call)

    prediction = ask(ScriptedLM(policy), sandbox, ScriptedLM(reply), max_depth=2)
    output = prediction.trajectory[0].output
    assert output.startswith("['yes', 'yes'] [ERROR]") and "['str', 'FailedCall']" in output
    assert output.count("raised") == 2 and "answered" not in output


def test_a_cancelled_tree_ends_at_every_depth_and_says_so(sandbox: Environment, eventually: Any) -> None:
    """Not only the root: its children and theirs, while their LM calls are under way."""
    deep, release = threading.Event(), threading.Event()

    def reply(call: Call) -> str:
        deep.set()
        release.wait(30)
        return "late"

    lm = played(
        {
            "LEAF": ["SUBMIT(llm_query('hold'))"],
            "MIDDLE": ["print('on the way')", "SUBMIT(rlm_query('LEAF'))"],
            "ROOT": ["print('begun')", "print(rlm_query_batched(['MIDDLE 1', 'MIDDLE 2']))"],
        }
    )
    program = RLM(
        "query -> answer: str",
        interpreter=sandbox,
        sub_lm=ScriptedLM(reply),
        guidance=False,
        max_depth=3,
        reuse=False,
    )
    ended: list[tuple[int, str]] = []

    def watch(event: Any, run: Any) -> None:
        if isinstance(event, ChildEnded):
            ended.append((event.depth, event.outcome))

    async def main() -> None:
        task = asyncio.create_task(program.acall(query="ROOT"))
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, deep.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert next(turn.output for turn in cancelled.value.trajectory) == "begun"  # type: ignore[attr-defined]

    try:
        with dspy.context(lm=lm), subscribe(watch):
            asyncio.run(main())
        assert ended and {outcome for _, outcome in ended} == {"cancelled"}
        assert {depth for depth, _ in ended} == {0, 1}
        assert eventually(lambda: sessions.slots.taken == 0)
    finally:
        release.set()


@pytest.mark.parametrize(
    "batch", ["rlm_query_batched(['CHILD QUICK', 'CHILD SLOW'])", "ask_batched(['QUICK', 'SLOW'])"]
)
def test_a_cancelled_batch_is_over_when_all_of_it_is(batch: str, sandbox: Environment) -> None:
    """One that ends at once does not let the run end before the others have closed what they opened."""
    at_work: list[str] = []
    over: list[str] = []
    both = asyncio.Event()

    async def clean_up(who: str) -> str:
        at_work.append(who)
        if len(at_work) == 2:
            both.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(50 if who == "SLOW" else 0):
                await asyncio.sleep(0)
            over.append(who)
        return who

    class Ask(dspy.Module):
        async def aforward(self, who: str) -> dspy.Prediction:
            return dspy.Prediction(answer=await clean_up(who))

    lm = played({"CHILD": ["SUBMIT(clean_up(prompt.split()[1]))"], "ROOT": [f"print({batch})"]})
    program = RLM(
        "query -> answer: str",
        interpreter=sandbox,
        guidance=False,
        tools=[clean_up],
        sub_calls={"ask": Ask()},
        max_depth=2,
    )

    async def main() -> None:
        task = asyncio.create_task(program.acall(query="ROOT"))
        await asyncio.wait_for(both.wait(), 15)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(over) == ["QUICK", "SLOW"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with dspy.context(lm=lm):
        asyncio.run(main())


def test_a_run_that_is_cancelled_as_its_loop_ends_leaves_no_process(sandbox: Environment) -> None:
    """Nobody waits for it any more, and the loop cancels its clean-up as well, before that has begun."""
    program = RLM("query -> answer: str", interpreter=sandbox, guidance=False)

    async def main(steps: int) -> None:
        opened = asyncio.Event()
        with subscribe(lambda event, run: opened.set() if event.kind == "session_opened" else None):
            task = asyncio.create_task(program.acall(query="ROOT"))
        await asyncio.wait_for(opened.wait(), 60)
        task.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)

    for steps in range(8):
        with dspy.context(lm=played({"ROOT": ["import time\ntime.sleep(60)"]})):
            asyncio.run(main(steps))


# ----------------------------------------------------------------------------------------------------------- state


def test_an_input_that_code_changed_stays_changed(sandbox: Environment) -> None:
    program = RLM("numbers: list[int], query -> total: int", interpreter=sandbox, guidance=False)
    given = [1, 2, 3]
    steps = ["numbers.append(4)", "query = 'rebound'", "print(query)\nSUBMIT(sum(numbers))"]
    with dspy.context(lm=ScriptedLM(oracle(*steps))):
        prediction = program(numbers=given, query="q")
    assert prediction.total == 10 and prediction.trajectory[2].output.startswith("rebound")
    assert given == [1, 2, 3], "the caller's own list is the caller's"


def test_a_history_of_earlier_calls_goes_in_and_comes_out(sandbox: Environment) -> None:
    """A session's calls are a ``dspy.History``, which any module takes, another RLM too."""

    class Next(dspy.Signature):
        """Answer."""

        history: dspy.History = dspy.InputField()
        query: str = dspy.InputField()
        answer: str = dspy.OutputField()

    program = RLM("query -> answer: str", interpreter=sandbox, guidance=False)
    with dspy.context(lm=ScriptedLM(oracle("SUBMIT('Ada')", "SUBMIT('Blaise')"))), program.session() as session:
        session(query="Who was first?")
        session(query="And last?")
        history = session.to_history()
    follow = RLM(Next, interpreter=sandbox, guidance=False)
    look = "SUBMIT(history.messages[-1]['answer'] + str(len(history.messages)))"
    with dspy.context(lm=ScriptedLM(oracle(look))):
        assert follow(history=history, query="Who was that?").answer == "Blaise2"
    lm = ScriptedLM(lambda call: "[[ ## answer ## ]]\nok\n\n[[ ## completed ## ]]")
    with dspy.context(lm=lm):
        assert dspy.Predict(Next)(history=history, query="Who?").answer == "ok"
    assert re.search("Blaise", str(lm.calls[0].messages[:-1]))


def test_a_variable_that_is_called_like_the_output_is_the_partial_answer(sandbox: Environment) -> None:
    """Computed and stored, never printed; then the LM dies, and the last question cannot be asked."""
    replies = iter([code("total = sum(range(5))\nnames = ['a', 'b']\nnote = object()"), code("1 / 0")])
    lm = ScriptedLM(lambda call: next(replies, Reply(error=RuntimeError("dead"))))
    program = RLM("query -> total: int, names: list[str], note: str", interpreter=sandbox, guidance=False)
    with dspy.context(lm=lm):
        prediction = program(query="q")
    assert prediction.outcome == "failed" and (prediction.total, prediction.names) == (10, ["a", "b"])
    assert prediction.note is None


def test_a_variable_of_an_earlier_call_is_no_partial_answer_of_a_later_one(sandbox: Environment) -> None:
    replies = iter([code("answer = 'old'\nSUBMIT(answer)"), code("x = 1")])
    lm = ScriptedLM(lambda call: next(replies, Reply(error=RuntimeError("dead"))))
    program = RLM("query -> answer", interpreter=sandbox, guidance=False)
    with dspy.context(lm=lm), program.session() as session:
        assert session(query="a").answer == "old"
        later = session(query="b")
    assert later.outcome == "failed" and later.answer is None
