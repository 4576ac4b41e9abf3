"""The tree: children, named models, one ledger, answers that are not paid twice."""

from __future__ import annotations

import logging
import threading
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, ConfigurationError, LimitReached, environments
from rlm_dspy.environments.base import Environment
from rlm_dspy.events import ChildEnded, ChildStarted
from rlm_dspy.testing import Call, Reply, ScriptedLM, code, outputs

PRICE = {"scripted/lm": (1.0, 1.0)}


def root_and_child(root: list[str], child: list[str]) -> ScriptedLM:
    """An LM that plays the root by one list of replies and every child by another."""

    def policy(call: Call) -> str:
        if "no code" in call.prompt:
            return "best"
        replies = child if "the result" in call.own[0]["content"] else root
        return replies[min(call.observations, len(replies) - 1)]

    return ScriptedLM(policy)


def asked(lm: Any, sandbox: Environment, *, sub: Any = None, **options: Any) -> dspy.Prediction:
    rlm = RLM("context -> answer: str", interpreter=sandbox, sub_lm=sub or ScriptedLM(lambda call: "yes"), **options)
    with dspy.context(lm=lm):
        prediction: dspy.Prediction = rlm(context="abcdefghij" * 5)
    return prediction


def test_a_child_gets_its_inputs_as_variables_and_gives_its_answer(sandbox: Environment) -> None:
    lm = root_and_child(
        [code("print(rlm_query('How long is it?', text=context, more=[1, 2]))"), code("SUBMIT('done')")],
        [code("SUBMIT(str((len(text), more, prompt)))")],
    )
    prediction = asked(lm, sandbox, max_depth=2)
    assert "(50, [1, 2], 'How long is it?')" in prediction.trajectory[0].output
    child = next(call for call in lm.calls if "the result" in call.own[0]["content"])
    assert "abcdefghij" * 5 not in child.system and prediction.usage["children"] == 1
    (ended,) = [event for event in prediction.trajectory.events if isinstance(event, ChildEnded)]
    assert ended.outcome == "submitted" and ended.events[0].kind == "run_started" and ended.events[0].depth == 1


def test_a_large_input_of_a_child_never_goes_through_a_prompt(sandbox: Environment) -> None:
    lm = root_and_child(
        [code("big = 'x' * 1_000_000\nprint(rlm_query('How long?', text=big))"), code("SUBMIT('done')")],
        [code("SUBMIT(str(len(text)))")],
    )
    prediction = asked(lm, sandbox, max_depth=2)
    assert "1000000" in prediction.trajectory[0].output
    assert max(len(str(call.own)) for call in lm.calls) < 20_000


def test_children_of_a_batch_run_at_the_same_time(sandbox: Environment) -> None:
    together = threading.Barrier(3, timeout=60)

    def meet() -> str:
        """Wait for the others."""
        together.wait()
        return "met"

    lm = root_and_child(
        [code("print(rlm_query_batched(['one', 'two', {'prompt': 'three'}]))"), code("SUBMIT('done')")],
        [code("SUBMIT(meet())")],
    )
    prediction = asked(lm, sandbox, max_depth=2, tools=[meet])
    assert "['met', 'met', 'met']" in prediction.trajectory[0].output


def test_no_more_children_at_once_than_the_gate_lets_through(sandbox: Environment) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def busy() -> str:
        """Count who is here."""
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        threading.Event().wait(0.02)
        with lock:
            now -= 1
        return "x"

    lm = root_and_child(
        [code("print(len(rlm_query_batched([f'n {n}' for n in range(6)])))"), code("SUBMIT('done')")],
        [code("SUBMIT(busy())")],
    )
    prediction = asked(lm, sandbox, max_depth=2, max_children=2, tools=[busy])
    assert prediction.usage["children"] == 6 and 1 <= most <= 2


def test_a_deep_tree_through_narrow_gates_does_not_deadlock(sandbox: Environment) -> None:
    def policy(call: Call) -> str:
        inner = "rlm_query_batched(['a', 'b'])"
        if "the result" in call.own[0]["content"]:
            return code(f"SUBMIT(str({inner} if budget()['depth'] else 'leaf'))")
        return code(f"SUBMIT(str({inner}))")

    prediction = asked(
        ScriptedLM(policy), sandbox, max_depth=4, max_children=1, max_concurrency=1, guidance=False, max_llm_calls=None
    )
    assert prediction.answer.count("leaf") == 8 and prediction.usage["children"] == 14
    assert prediction.usage["deepest"] == 3


def test_the_trajectory_has_what_children_did_in_the_order_they_started(sandbox: Environment) -> None:
    """Down to the last level, in lists and as HTML."""

    def policy(call: Call) -> str:
        task = call.own[0]["content"]
        if "leaf" in task:
            return code("SUBMIT(text.upper())")
        if "branch" in task:
            return code("SUBMIT(rlm_query('leaf <b>', text=text))")
        rows = "[{'prompt': f'branch {n}', 'text': 'ab'[n]} for n in range(2)]"
        return code(f"SUBMIT(' '.join(rlm_query_batched({rows})))")

    prediction = asked(ScriptedLM(policy), sandbox, max_depth=3)
    assert prediction.answer == "A B"
    children = prediction.trajectory.children
    assert [(run.turn, run.name, run.prompt) for run in children] == [
        (1, "rlm_query_batched", "branch 0"),
        (1, "rlm_query_batched", "branch 1"),
    ]
    for run in children:
        assert run.outcome == "submitted" and run.seconds > 0 and run.inputs["text"] == "str, 1 character"
        (leaf,) = run.trajectory.children
        assert leaf.prompt == "leaf <b>" and leaf.trajectory[0].code == "SUBMIT(text.upper())"
        assert leaf.trajectory.children == ()
    assert prediction.trajectory[:1].children == ()
    page = prediction.trajectory._repr_html_()
    assert all(page.count(prompt) >= 1 for prompt in ("branch 0", "branch 1")) and page.count("leaf &lt;b&gt;") >= 2
    assert "leaf <b>" not in page


def test_a_key_in_the_prompt_of_a_child_is_not_shown(sandbox: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "zq-very-secret-9")
    lm = root_and_child([code("SUBMIT(rlm_query('use zq-' + 'very-secret-9'))")], [code("SUBMIT('done')")])
    prediction = asked(lm, sandbox, max_depth=2)
    assert prediction.answer == "done"
    (run,) = prediction.trajectory.children
    assert run.prompt == "use [hidden]"


def test_at_the_last_level_one_sub_call_answers_and_says_so(sandbox: Environment) -> None:
    sub = ScriptedLM(lambda call: "flat")
    lm = ScriptedLM([code("print(rlm_query('Sum up', text=context))"), code("SUBMIT('x')")])
    prediction = asked(lm, sandbox, sub=sub)
    assert "flat" in prediction.trajectory[0].shown and "max_depth=1" in prediction.trajectory[0].shown
    assert "Sum up" in sub.calls[0].prompt and "abcdefghij" in sub.calls[0].prompt


def test_usage_of_the_root_is_the_sum_over_the_tree(sandbox: Environment) -> None:
    """Children and leaves are in the totals, once."""
    sub = ScriptedLM(lambda call: "yes", model="scripted/sub")
    lm = root_and_child(
        [code("print(llm_query('a'), rlm_query('b'), rlm_query('c'))"), code("SUBMIT('done')")],
        [code("SUBMIT(llm_query(prompt + ' leaf'))")],
    )
    prediction = asked(lm, sandbox, sub=sub, max_depth=2, prices={"scripted/lm": (1, 2), "scripted/sub": (3, 4)})
    usage = prediction.usage
    assert usage["lm_calls"] == len(lm.calls) + len(sub.calls) == 2 + 2 + 3
    for name in ("lm_calls", "input_tokens", "output_tokens"):
        for table in (usage["by_role"].values(), usage["by_depth"].values(), usage["table"]):
            assert sum(row[name] for row in table) == usage[name]
    assert usage["cost"] == pytest.approx(sum(row["cost"] for row in usage["table"]), abs=1e-12) and usage["cost"] > 0
    assert usage["by_depth"]["1"]["lm_calls"] == 4 and usage["by_role"]["sub"]["lm_calls"] == 3
    assert usage["calls"] == 5 and usage["turns"] == 4


def test_sub_calls_of_a_child_go_to_the_sub_lm(sandbox: Environment) -> None:
    sub = ScriptedLM(lambda call: "from the sub")
    lm = root_and_child(
        [code("print(rlm_query('b'))"), code("SUBMIT('done')")], [code("SUBMIT(llm_query('leaf'))")]
    )
    prediction = asked(lm, sandbox, sub=sub, max_depth=2)
    assert "from the sub" in prediction.trajectory[0].output and len(sub.calls) == 1


def test_models_by_name_and_by_depth(sandbox: Environment) -> None:
    fast = ScriptedLM(lambda call: "fast")
    cheap = ScriptedLM([code("SUBMIT('by the cheap root')")])
    lm = ScriptedLM(
        [
            code("print(llm_query('a', model='fast'), rlm_query('b'))\nllm_query('c', model='slow')"),
            code("SUBMIT('done')"),
        ]
    )
    prediction = asked(
        lm, sandbox, max_depth=2, models={"fast": fast, "cheap": cheap}, models_by_depth={1: {"root": "cheap"}}
    )
    output = prediction.trajectory[0].output
    assert "fast by the cheap root" in output
    assert "no model named 'slow'; the models are 'fast', 'cheap'" in output


def test_a_child_has_the_tools_it_is_given(sandbox: Environment) -> None:
    def mine() -> str:
        """The root's."""
        return "root"

    def theirs() -> str:
        """The children's."""
        return "child"

    lm = root_and_child(
        [code("print(mine(), rlm_query('x'))"), code("SUBMIT('done')")],
        [code("try:\n    mine()\nexcept NameError:\n    SUBMIT(theirs())")],
    )
    prediction = asked(lm, sandbox, max_depth=2, tools=[mine], sub_tools=[theirs])
    assert "root child" in prediction.trajectory[0].output


def test_another_module_as_the_child(sandbox: Environment) -> None:
    child = dspy.Predict("text -> size: int")
    child.lm = ScriptedLM(lambda call: "[[ ## size ## ]]\n7\n\n[[ ## completed ## ]]")
    lm = ScriptedLM([code("print(rlm_query(text='x') + 1)"), code("SUBMIT('done')")])
    prediction = asked(lm, sandbox, max_depth=2, child=child)
    assert prediction.trajectory[0].output == "8" and prediction.usage["by_role"]["child"]["lm_calls"] == 1


def test_another_rlm_as_the_child(sandbox: Environment) -> None:
    child = RLM("text, query -> size: int", interpreter=sandbox, max_iters=3)
    lm = ScriptedLM(
        lambda call: code("SUBMIT(len(text))")
        if "`text`" in call.own[0]["content"]
        else [code("print(rlm_query(text=context, query='How long is it?'))"), code("SUBMIT('done')")][
            min(call.observations, 1)
        ]
    )
    prediction = asked(lm, sandbox, max_depth=2, child=child)
    assert prediction.trajectory[0].output == "50"


def test_a_child_that_is_stopped_gives_its_best_answer(sandbox: Environment) -> None:
    def policy(call: Call) -> str:
        if "the result" in call.own[0]["content"]:
            return "its best" if "Reply with" in call.prompt and "no code" in call.prompt else code("print('looking')")
        return [code("print(rlm_query('look'))"), code("SUBMIT('done')")][min(call.observations, 1)]

    prediction = asked(ScriptedLM(policy), sandbox, max_depth=2, max_iters=2, guidance={"break_repeats": False})
    assert "its best" in prediction.trajectory[0].output and "max_iters" in prediction.trajectory[0].shown


def test_budget_attack_children_cannot_pass_the_limit_on_calls(sandbox: Environment) -> None:
    """Every LM call below the root counts against its limit, whoever makes it."""
    sub = ScriptedLM(lambda call: "yes")
    lm = root_and_child(
        [code("r = rlm_query_batched([f'n {n}' for n in range(20)])\nprint(r)"), code("SUBMIT('done')")],
        [code("x = llm_query_batched([f'{prompt} {n}' for n in range(3)])\nprint(x)"), code("SUBMIT('ok')")],
    )
    prediction = asked(lm, sandbox, sub=sub, max_depth=2, max_llm_calls=11)
    below = len(sub.calls) + sum("the result" in call.own[0]["content"] for call in lm.calls)
    assert prediction.outcome == "submitted" and below == prediction.usage["calls"] <= 11
    assert "[ERROR]" in prediction.trajectory[0].output


@pytest.mark.parametrize("limit", [{"max_tokens": 30_000}, {"max_cost": 0.03, "prices": PRICE}])
def test_budget_attack_tokens_and_money_hold_over_the_tree(sandbox: Environment, limit: dict[str, Any]) -> None:
    sub = ScriptedLM(lambda call: "yes " * 50)
    lm = root_and_child(
        [code("print(len(rlm_query_batched([f'n {n}' for n in range(9)])))")],
        [code("print(len(llm_query_batched([f'{prompt} {n} ' * 300 for n in range(9)])))")],
    )
    prediction = asked(
        lm,
        sandbox,
        sub=sub,
        max_depth=2,
        max_llm_calls=None,
        max_concurrency=4,
        guidance={"break_repeats": False},
        **limit,
    )
    usage = prediction.usage
    used = usage["input_tokens"] + usage["output_tokens"]
    largest = max(row["input_tokens"] + row["output_tokens"] for row in usage["table"])
    # A call in each of four places, and a last word for each run that was open.
    assert prediction.outcome == "extracted" and prediction.outcome.limit in ("max_tokens", "max_cost", "max_iters")
    assert used <= 30_000 + 10 * 4_000 and largest > 0


def test_a_tool_that_calls_lms_by_itself_is_stopped_by_the_limit(sandbox: Environment) -> None:
    inner = ScriptedLM(lambda call: "yes")
    done = 0

    def loop() -> int:
        """Call an LM again and again."""
        nonlocal done
        for n in range(500):
            inner(f"question {n} " * 50)
            done += 1
        return done

    lm = ScriptedLM([code("loop()"), code("SUBMIT('x')")])
    prediction = asked(lm, sandbox, tools=[loop], max_tokens=20_000)
    assert done < 200 and "max_tokens" in prediction.trajectory[0].output


def test_an_unknown_price_is_an_error_where_money_is_limited(sandbox: Environment) -> None:
    with pytest.raises(ConfigurationError, match=r"price of scripted/lm is unknown.*prices="):
        RLM("context -> answer", max_cost=1, sub_lm=ScriptedLM(["x"]))
    rlm = RLM("context -> answer", max_cost=1, interpreter=sandbox)
    with dspy.context(lm=ScriptedLM([code("SUBMIT('x')")])), pytest.raises(ConfigurationError, match="prices="):
        rlm(context="x")
    assert asked(ScriptedLM([code("SUBMIT('x')")]), sandbox).usage["cost"] is None


def test_a_limit_raises_with_the_answer_where_that_is_asked_for(sandbox: Environment) -> None:
    lm = ScriptedLM(lambda call: "best" if "no code" in call.prompt else code("print(len(context))"))
    with pytest.raises(LimitReached) as caught:
        asked(lm, sandbox, max_tokens=4_000, on_limit="raise", guidance={"break_repeats": False})
    assert caught.value.limit == "max_tokens" and caught.value.prediction.answer and caught.value.trajectory


def test_what_was_asked_before_is_not_paid_again(sandbox: Environment) -> None:
    sub = ScriptedLM(lambda call: f"reply {call.number}")
    lm = ScriptedLM(
        [
            code(
                "again = llm_query_batched(['a', 'b', 'b'])\n"
                "print(llm_query('a'), llm_query('a'), *again, llm_query('a', fresh=True))"
            ),
            code("SUBMIT('x')"),
        ]
    )
    prediction = asked(lm, sandbox, sub=sub)
    assert len(sub.calls) == prediction.usage["calls"] == 3
    first, *_ = output = prediction.trajectory[0].output.split("reply ")[1:]
    assert [o.strip() for o in output[:3]] == [first.strip()] * 3 and output[3].strip() == output[4].strip()
    again = asked(
        ScriptedLM([code("print(llm_query('a'), llm_query('a'))"), code("SUBMIT('x')")]),
        sandbox,
        sub=ScriptedLM(lambda call: "y"),
        reuse=False,
    )
    assert again.usage["calls"] == 2


def test_a_refused_call_does_not_pass_for_one_that_is_under_way(sandbox: Environment) -> None:
    """Calls one after the other are told of the batched one, also where one before them was refused."""
    refused = "try:\n    llm_query('x')\nexcept RuntimeError:\n    print('refused')"
    source = f"for n in range(5):\n    llm_query(f'q {{n}}')\n{refused}"
    lm = ScriptedLM([code(refused), code(source), code("SUBMIT('x')")])
    prediction = asked(lm, sandbox, max_llm_calls=5)
    assert prediction.usage["calls"] <= 5 and "one after the other" in prediction.trajectory[1].shown


def test_a_failure_is_not_remembered(sandbox: Environment) -> None:
    def reply(call: Call) -> str:
        if call.number <= 1:
            raise dspy.lm15.InvalidRequestError("no")
        return "yes"

    lm = ScriptedLM([code("print(llm_query_batched(['a', 'a']))\nprint(llm_query('a'))"), code("SUBMIT('x')")])
    prediction = asked(lm, sandbox, sub=ScriptedLM(reply))
    assert prediction.trajectory[0].output.endswith("yes") and "[ERROR]" in prediction.trajectory[0].output


def test_after_a_failure_one_of_those_who_wait_asks_for_all(sandbox: Environment) -> None:
    sub = ScriptedLM([Reply(error=dspy.lm15.InvalidRequestError("no")), Reply("yes", delay=0.1)])
    lm = ScriptedLM([code("print(llm_query_batched(['a'] * 6))"), code("SUBMIT('x')")])
    prediction = asked(lm, sandbox, sub=sub, max_llm_calls=2)
    output = prediction.trajectory[0].output
    assert output.count("'yes'") == 5 and output.count("[ERROR]") == 1 and prediction.usage["calls"] == 2


@pytest.mark.parametrize("name", ["inprocess", "subprocess"])
def test_an_answer_that_code_has_changed_is_reused_as_it_was(name: str, no_leaks: None) -> None:
    sub = ScriptedLM(["[[ ## tags ## ]]\n['a']\n\n[[ ## completed ## ]]"])
    lm = ScriptedLM([code("f('x').append('b')\nprint(f('x'))"), code("SUBMIT('x')")])
    prediction = asked(lm, environments.get(name), sub=sub, sub_calls={"f": "text -> tags: list[str]"})
    assert prediction.trajectory[0].output.startswith("['a']")


def test_typed_sub_calls_give_python_values(sandbox: Environment) -> None:
    def reply(call: Call) -> str:
        assert "clause" in call.prompt
        return "[[ ## label ## ]]\ngood\n\n[[ ## score ## ]]\n3\n\n[[ ## completed ## ]]"

    lm = ScriptedLM(
        [
            code(
                "one = classify('c1', labels=['good'])\n"
                "many = classify_batched(['c2', {'clause': 'c3'}], labels=['bad'])\n"
                "print(one.label, one.score + 1, one['score'], [m.score for m in many])\nclassify(labels=[])"
            ),
            code("SUBMIT('x')"),
        ]
    )
    calls = {"classify": "clause: str, labels: list[str] -> label: str, score: int"}
    prediction = asked(lm, sandbox, sub=ScriptedLM(reply), sub_calls=calls)
    output = prediction.trajectory[0].output
    assert output.startswith("good 4 3 [3, 3]\n") and "classify needs clause" in output
    contract = lm.calls[0].own[0]["content"]
    assert "classify(clause: str, labels: list[str]) -> record with .label: str, .score: int" in contract
    assert prediction.usage["by_role"]["classify"]["lm_calls"] == 3


class Judge(dspy.Module):
    """Judges an entry."""

    def __init__(self, renamed: bool) -> None:
        super().__init__()
        self.think = dspy.ChainOfThought("entry: str -> severity: int")
        self.renamed = renamed

    def forward(self, entry: str) -> dspy.Prediction:
        found = self.think(entry=entry)
        return dspy.Prediction(grade=found.severity, of=entry) if self.renamed else found


@pytest.mark.parametrize(("renamed", "shown"), [(False, "4"), (True, "3 a")])
def test_a_module_as_a_sub_call_gives_its_outputs_and_no_reasoning(
    sandbox: Environment, renamed: bool, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = "found = judge('a')\nprint(f'{found.grade} {found.of}' if hasattr(found, 'grade') else found + 1)"
    lm = ScriptedLM([code(source), code("SUBMIT('x')")])
    sub = ScriptedLM(lambda call: outputs(reasoning="It says so.", severity=3))
    dspy_log = logging.getLogger("dspy")
    dspy_log.addHandler(caplog.handler)
    try:
        prediction = asked(lm, sandbox, sub=sub, sub_calls={"judge": Judge(renamed)})
    finally:
        dspy_log.removeHandler(caplog.handler)
    assert prediction.trajectory[0].output == shown
    assert "- `judge(entry: str) -> int` - Judges an entry." in lm.calls[0].own[0]["content"]
    # Looking at what it takes is no call of its `forward`, of which DSPy warns.
    assert not [record for record in caplog.records if "forward" in record.getMessage()]


def test_a_reply_that_does_not_fit_is_asked_for_once_more_and_paid(sandbox: Environment) -> None:
    sub = ScriptedLM(lambda call: "[[ ## n ## ]]\n7\n\n[[ ## completed ## ]]" if call.number else "no idea")
    lm = ScriptedLM([code("print(predict('text -> n: int', text='t') + 1)"), code("SUBMIT('x')")])
    prediction = asked(lm, sandbox, sub=sub)
    assert prediction.trajectory[0].output == "8" and len(sub.calls) == prediction.usage["calls"] == 2
    never = ScriptedLM(lambda call: "no idea")
    lm = ScriptedLM([code("print(predict_batched('text -> n: int', ['a', 'b']))"), code("SUBMIT('x')")])
    prediction = asked(lm, sandbox, sub=never)
    assert prediction.trajectory[0].output.count("could not be read, twice") == 2 and len(never.calls) == 4


def test_sub_calls_are_predictors_of_the_program() -> None:
    rlm = RLM("context -> answer", sub_calls={"classify": "text -> label"}, max_depth=2)
    names = {name for name, _ in rlm.named_predictors()}
    assert {"act", "sub", "extract", "sub_calls['classify']", "extract_child"} <= names
    copied = RLM("context -> answer", sub_calls={"classify": "text -> label"}, max_depth=2)
    rlm.sub_calls["classify"].signature = rlm.sub_calls["classify"].signature.with_instructions("Be strict.")
    copied.load_state(rlm.dump_state())
    assert copied.sub_calls["classify"].signature.instructions == "Be strict."
    RLM("context -> answer", sub_calls={"classify": "text -> label"}, max_depth=2).load_state(
        {name: value for name, value in rlm.dump_state().items() if name != "extract_child"}
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sub_calls": {"llm_query": "a -> b"}}, "reserved"),
        ({"sub_calls": {"not a name": "a -> b"}}, "cannot be names"),
        ({"sub_calls": {"context": "a -> b"}}, "sub_calls and inputs"),
        ({"sub_calls": {"f": "a -> b"}, "tools": [dspy.Tool(lambda: 1, name="f_batched")]}, "sub_calls and tools"),
        ({"sub_calls": {"f": "nonsense"}}, "cannot be read"),
        ({"sub_signature": "nonsense"}, "cannot be read"),
        ({"models_by_depth": {1: {"root": "none"}}}, "no model named"),
        ({"models_by_depth": {-1: {"root": ScriptedLM(["x"])}}}, "depth"),
        ({"prices": {"m": 3}}, "price of 'm'"),
        ({"max_depth": 0}, "max_depth"),
        ({"max_cost": float("nan")}, "max_cost"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        RLM("context -> answer", **options)


def test_a_cancelled_run_leaves_no_child(sandbox: Environment) -> None:
    """A time limit strikes while children run: they end before their parent's time is up, and nothing is left."""
    lm = root_and_child(
        [code("print(rlm_query_batched(['a', 'b']))"), code("SUBMIT('x')")], [code("import time\ntime.sleep(60)")]
    )
    events: list[Any] = []
    from rlm_dspy import subscribe

    with subscribe(lambda event, run: events.append(event)):
        prediction = asked(lm, sandbox, max_depth=2, max_seconds=3, extract_seconds=1)
    assert prediction.answer in ("best", "x")
    started = [event for event in events if isinstance(event, ChildStarted)]
    ended = [event for event in events if isinstance(event, ChildEnded)]
    assert len(started) == len(ended) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sub_calls": {"f": "a -> b", "f_batched": "a -> b"}}, "f_batched is the twin"),
        ({"sub_calls": {"f": "config, demos -> b"}}, r"\['config', 'demos'\] of sub_calls\['f'\] are keywords"),
        ({"sub_signature": "lm -> b"}, r"\['lm'\] of sub_signature are keywords"),
        ({"sub_calls": {"f": "signature -> b"}}, r"sub_calls\['f'\] cannot be read.*signature cannot be names"),
        ({"signature": "instructions -> b"}, "instructions.*cannot be names of fields; rename"),
    ],
)
def test_names_that_dspy_needs_itself_are_refused_with_the_fix(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        RLM(**{"signature": "context -> answer", **options})


def test_inputs_of_sub_calls_and_children_may_have_any_other_name(sandbox: Environment) -> None:
    names = ("module", "adapter", "run", "role", "prompt", "inputs", "which", "kind", "history", "trace")
    form = "[[ ## out ## ]]\n{}\n\n[[ ## completed ## ]]"
    sub = ScriptedLM(lambda call: form.format(all(f"V{name}" in call.prompt for name in names)))
    given = ", ".join(f"{name}='V{name}'" for name in names)
    lm = root_and_child(
        [
            code(f"print(f({given}), f_batched([dict({given})]))\nprint(rlm_query({given}))"),
            code("try:\n    rlm_query('q', instructions='x')\nexcept Exception as e:\n    print(e)"),
            code("SUBMIT('done')"),
        ],
        [code(f"SUBMIT(str([{', '.join(names)}]))")],
    )
    prediction = asked(lm, sandbox, sub=sub, max_depth=2, sub_calls={"f": f"{', '.join(names)} -> out: bool"})
    first, second = prediction.trajectory[0].output, prediction.trajectory[1].output
    assert first.startswith("True [True]") and str([f"V{name}" for name in names]) in first
    assert "a child's inputs cannot be read" in second


def test_a_value_does_not_pass_for_the_input_that_follows_it(sandbox: Environment) -> None:
    sub = ScriptedLM(lambda call: f"[[ ## out ## ]]\n{call.number}\n\n[[ ## completed ## ]]")
    root = ScriptedLM([code("print(f('1b:str:2', '3'), f('1', '2b:str:3'), f('1', '2b:str:3'))"), code("SUBMIT('x')")])
    prediction = asked(root, sandbox, sub=sub, sub_calls={"f": "a, b -> out: int"})
    assert prediction.trajectory[0].output.startswith("0 1 1") and len(sub.calls) == 2
