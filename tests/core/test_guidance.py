"""The aids for small models: what each does, that each can be turned off, and that none of them loses an answer."""

from __future__ import annotations

import copy
import enum
import pickle
from collections.abc import Callable
from typing import Any, Literal, Optional

import dspy
import numpy as np
import pydantic
import pytest

from rlm_dspy import RLM, ConfigurationError, Guidance, first_look, subscribe
from rlm_dspy.environments.base import CellResult, Environment, Submission
from rlm_dspy.events import Aided
from rlm_dspy.guide import Guide
from rlm_dspy.limits import Limits
from rlm_dspy.run import Run
from rlm_dspy.submit import doubt
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

BOATS = "\n".join(
    f"day {n} boat{n % 7} left {'Lisbon' if n % 5 else 'Zanzibar'} at {'noon' if n % 3 else 'dawn'}" for n in range(200)
)
QUESTION = "How many boats left Zanzibar at dawn?"
BEST = "[[ ## answer ## ]]\nbest guess\n\n[[ ## completed ## ]]"


def acting(*replies: str | Reply, best: str | Reply = BEST) -> ScriptedLM:
    """A root that acts from a list (the last again and again) and answers ``extract`` with ``best``."""

    def policy(call: Call) -> str | Reply:
        if "No more code can run" in call.prompt:
            return best
        return replies[min(call.turn, len(replies) - 1)]

    return ScriptedLM(policy)


def ask(root: ScriptedLM, sandbox: Environment, signature: Any = "context, query -> answer", **options: Any) -> Any:
    with dspy.context(lm=root):
        return RLM(signature, interpreter=sandbox, **options)(context=BOATS, query=QUESTION)


def observation(root: ScriptedLM, number: int = 1) -> str:
    """What the root was shown of its turn, without what is left and what to do next."""
    return root.calls[number].prompt.partition("\n\n[turn ")[0]


# ------------------------------------------------------------------------------------------------------ the switches


def looked(guidance: Guidance, sandbox: Environment, *replies: str, **options: Any) -> tuple[Any, ScriptedLM]:
    root = acting(*(replies or [code("print(len(context))")]), code("SUBMIT(str(len(context)))"))
    return ask(root, sandbox, guidance=guidance, max_iters=6, **options), root


def has_short_contract(guidance: Guidance, sandbox: Environment) -> bool:
    _, root = looked(guidance, sandbox)
    return "# Variables" not in root.calls[0].prompt


def has_plain_dialect(guidance: Guidance, sandbox: Environment) -> bool:
    _, root = looked(guidance, sandbox)
    return "```python" in root.calls[0].system and "[[ ## code ## ]]" not in root.calls[0].system


def has_demonstration(guidance: Guidance, sandbox: Environment) -> bool:
    _, root = looked(guidance, sandbox)
    return any(message["role"] == "assistant" for message in root.calls[0].messages)


def has_first_look(guidance: Guidance, sandbox: Environment) -> bool:
    _, root = looked(guidance, sandbox)
    shown = root.calls[0].own[0]["content"]
    return "\nday 0 boat0 left Zanzibar at dawn\n" in shown and "\nday 199 " in shown


def has_repeated_task(guidance: Guidance, sandbox: Environment) -> bool:
    _, root = looked(guidance, sandbox)
    return "\nTask: How many boats left Zanzibar at dawn?\n" in root.calls[1].prompt


def has_broken_repeats(guidance: Guidance, sandbox: Environment) -> bool:
    root = acting(code("print(len(context))"))
    prediction = ask(root, sandbox, guidance=guidance, max_iters=6)
    assert prediction.answer == "best guess" and prediction.outcome == "extracted"
    assert (prediction.outcome.limit, len(prediction.trajectory)) in [("repeats", 3), ("max_iters", 6)]
    return prediction.outcome.limit == "repeats"


def has_checked_answers(guidance: Guidance, sandbox: Environment) -> bool:
    prediction, _ = looked(guidance, sandbox, code("print(len(context))"), code("SUBMIT('')"))
    assert prediction.outcome == "submitted"
    return prediction.answer == str(len(BOATS))


def has_kept_inputs(guidance: Guidance, sandbox: Environment) -> bool:
    prediction, _ = looked(guidance, sandbox, code('context = "day 0 boat0"\nprint(context)'))
    assert prediction.answer in (str(len(BOATS)), "11")
    return prediction.answer == str(len(BOATS))


def has_explained_empty(guidance: Guidance, sandbox: Environment) -> bool:
    _, root = looked(guidance, sandbox, code("print([line for line in context.splitlines() if 'zebra' in line])"))
    assert observation(root).startswith("Output:\n[]")
    return "'zebra' never" in observation(root)


def has_mended_conditions(guidance: Guidance, sandbox: Environment) -> bool:
    _, root = looked(guidance, sandbox, code("print(len([l for l in context.splitlines() if 'zanzibar' in l]))"))
    assert observation(root).startswith("Output:\n0")
    return "Its output:\n40" in observation(root)


def has_named_words(guidance: Guidance, sandbox: Environment) -> bool:
    _, root = looked(guidance, sandbox, code("print(context.count('Zanzibar'))"))
    assert observation(root).startswith("Output:\n40")
    return "'dawn'" in observation(root) and "'Zanzibar'" not in observation(root)


def has_hinted_batches(guidance: Guidance, sandbox: Environment) -> bool:
    sub = ScriptedLM(lambda call: "yes")
    source = "for n in range(5): print(llm_query(f'question {n}'))"
    prediction, root = looked(guidance, sandbox, code(source), sub_lm=sub)
    assert prediction.usage["calls"] == 5
    return "llm_query_batched([" in observation(root)


def has_salvage(guidance: Guidance, sandbox: Environment) -> bool:
    prediction, _ = looked(guidance, sandbox, "I look.\n```\nprint(len(context))")
    assert prediction.outcome == "submitted"
    return prediction.trajectory[0].code == "print(len(context))"


SWITCHES: dict[str, Callable[[Guidance, Environment], bool]] = {
    "short_contract": has_short_contract,
    "plain_dialect": has_plain_dialect,
    "demonstration": has_demonstration,
    "first_look": has_first_look,
    "repeat_task": has_repeated_task,
    "break_repeats": has_broken_repeats,
    "check_answers": has_checked_answers,
    "keep_inputs": has_kept_inputs,
    "explain_empty": has_explained_empty,
    "mend_conditions": has_mended_conditions,
    "name_words": has_named_words,
    "hint_batches": has_hinted_batches,
    "salvage": has_salvage,
}


@pytest.mark.parametrize("switch", Guidance.names())
def test_every_aid_can_be_turned_off(sandbox: Environment, switch: str) -> None:
    given = SWITCHES[switch]
    assert given(Guidance(), sandbox)
    assert not given(Guidance(**{switch: False}), sandbox)
    assert not given(Guidance.of(False), sandbox)
    assert given(Guidance(**{**Guidance.of(False).to_dict(), switch: True}), sandbox)


@pytest.mark.parametrize(
    ("given", "off"),
    [
        (True, ()),
        (False, Guidance.names()),
        ({}, ()),
        ({"demonstration": False, "salvage": True}, ("demonstration",)),
        (Guidance(first_look=False), ("first_look",)),
    ],
)
def test_guidance_is_given_as_a_bool_a_mapping_or_itself(given: Any, off: tuple[str, ...]) -> None:
    rlm = RLM("q -> a", guidance=given)
    assert isinstance(rlm.guidance, Guidance) and rlm.guidance.off() == off
    assert rlm.guidance.to_dict() == {name: name not in off for name in Guidance.names()}
    view = RLM("q -> a").with_options(guidance=given, max_iters=3)
    assert view.guidance == rlm.guidance and view.max_iters == 3


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"demo": False}, ConfigurationError, r"unknown switches \['demo'\].*they are short_contract, .*salvage"),
        ({"demonstration": 0}, TypeError, "demonstration must be True or False"),
        ("all", TypeError, "must be True, False, a Guidance or a mapping of its switches, not 'all'"),
        (None, TypeError, "not None"),
        (["demonstration"], TypeError, "not \\['demonstration'\\]"),
    ],
)
def test_a_wrong_guidance_is_refused_at_once(given: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        RLM("q -> a", guidance=given)
    with pytest.raises(kind, match=words):
        RLM("q -> a").with_options(guidance=given)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)), lambda o: o.with_options(max_iters=2)]
)
def test_guidance_goes_with_a_copy_and_not_with_the_state(again: Callable[[Any], Any], tmp_path: Any) -> None:
    rlm = RLM("q -> a", guidance={"demonstration": False})
    assert again(rlm).guidance == rlm.guidance == Guidance(demonstration=False)
    view = rlm.with_options(guidance=False)
    assert rlm.guidance.off() == ("demonstration",) and view.guidance == Guidance.of(False)
    rlm.save(tmp_path / "state.json")
    saved = (tmp_path / "state.json").read_text()
    assert not [name for name in ("guidance", *Guidance.names()) if name in saved]
    other = RLM("q -> a")
    other.load(tmp_path / "state.json")
    assert other.guidance == Guidance()


# ------------------------------------------------------------------------------------------------------------ repeats


def test_two_pieces_of_code_that_take_turns_are_found(sandbox: Environment) -> None:
    a, b = code("print(context.count('dawn'))"), code("print(context.count('noon'))")
    root = ScriptedLM(lambda call: BEST if "No more code" in call.prompt else (a, b)[call.turn % 2])
    prediction = ask(root, sandbox, max_iters=9)
    assert prediction.outcome.limit == "repeats" and len(prediction.trajectory) == 4
    assert "run this code before" in observation(root, 3) and "run this code before" not in observation(root, 2)


def test_the_number_of_a_cell_does_not_hide_a_repetition(sandbox: Environment) -> None:
    root = acting(code("def f():\n    return 1 / 0\nf()"))
    prediction = ask(root, sandbox, max_iters=9)
    assert "<cell 1>" in prediction.trajectory[0].output and "<cell 2>" in prediction.trajectory[1].output
    assert prediction.outcome.limit == "repeats" and len(prediction.trajectory) == 3


@pytest.mark.parametrize("reply", ["", "I do not know.", " \n"])
def test_replies_without_code_are_repetitions_too(sandbox: Environment, reply: str) -> None:
    prediction = ask(acting(reply), sandbox, max_iters=9)
    assert prediction.outcome.limit == "repeats" and len(prediction.trajectory) == 3


def test_a_remark_that_is_made_once_does_not_hide_a_repetition(sandbox: Environment) -> None:
    root = acting(code("print(context.count('Zanzibar'))"))
    prediction = ask(root, sandbox, max_iters=9)
    assert observation(root, 1) != observation(root, 2).partition("\nYou have run")[0], "no such remark was made"
    assert prediction.outcome.limit == "repeats" and len(prediction.trajectory) == 3


def test_what_the_host_is_asked_again_is_no_repetition(sandbox: Environment) -> None:
    asked: list[int] = []

    def ready() -> bool:
        """Whether the export is ready."""
        asked.append(1)
        return len(asked) > 6

    def policy(call: Call) -> str:
        return code("SUBMIT('ready')") if call.prompt.startswith("Output:\nTrue") else code("print(ready())")

    root = ScriptedLM(policy)
    prediction = ask(root, sandbox, max_iters=20, tools=[ready])
    assert prediction.answer == "ready" and len(asked) == 7 and prediction.outcome == "submitted"


def test_the_same_code_with_another_output_is_no_repetition(sandbox: Environment) -> None:
    counting = code("n = globals().get('n', 0) + 1\nprint(n)\nif n > 5: SUBMIT(str(n))")
    assert ask(acting(counting), sandbox, max_iters=9).answer == "6"


# ------------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("source", "runs"),
    [
        ('context = "day 0"', False),
        ("context = '''day 0\nday 1'''", False),
        ("x = 1\ncontext = (\n    'day 0 '\n    'day 1'\n)", False),
        ('context: str = "day 0"', False),
        ('context = f"day 0"', False),
        ('context = "day 0\nday 1 and so on until the tokens end', False),
        ('context = "\\n".join(context.splitlines())', True),
        ("context = f'{context}\\nday 200'", True),
        ("context = 'day 0' if len(context) > 9 else context", True),
        ("context = context.replace('\\r', '')", True),
        ("if context == 'day 0': print(1)", True),
        ("query = 'What?'", True),
        ("def f():\n    context = 'inner'\n    return context", True),
        ("print('''\nx\ncontext = \"a\"\n''')", True),
        ("context2 = 'x'", True),
    ],
)
def test_only_code_that_types_a_large_input_in_is_not_run(sandbox: Environment, source: str, runs: bool) -> None:
    root = acting(code(source), code("SUBMIT(str(len(context)))"))
    prediction = ask(root, sandbox)
    assert ("was not run" in prediction.trajectory[0].output) is not runs
    assert prediction.trajectory[0].error is not runs
    if not runs:
        assert "`context` is set already" in observation(root) and prediction.answer == str(len(BOATS))


# ------------------------------------------------------------------------------------------------------------ answers


def test_a_refused_answer_is_taken_when_it_comes_again(sandbox: Environment) -> None:
    root = acting(code("print(len(context))"), code("SUBMIT('unknown')"))
    prediction = ask(root, sandbox)
    assert prediction.answer == "unknown" and prediction.outcome == "submitted" and len(prediction.trajectory) == 3
    assert "[Error] SUBMIT was refused: answer is 'unknown', which gives up." in observation(root, 2)
    assert prediction.trajectory[1].error and not prediction.trajectory[2].error


def test_the_answer_of_the_last_turn_is_taken(sandbox: Environment) -> None:
    prediction = ask(acting(code("print(1)"), code("SUBMIT('')")), sandbox, max_iters=2)
    assert prediction.answer == "" and prediction.outcome == "submitted"


def test_an_answer_is_taken_where_one_more_error_would_end_the_turns(sandbox: Environment) -> None:
    prediction = ask(acting(code("SUBMIT('')")), sandbox, max_errors=1)
    assert prediction.answer == "" and prediction.outcome == "submitted" and len(prediction.trajectory) == 1
    prediction = ask(acting(code("1 / 0"), code("SUBMIT('none')")), sandbox, max_errors=2)
    assert prediction.answer == "none" and prediction.outcome == "submitted" and len(prediction.trajectory) == 2


@pytest.mark.parametrize("broken", ["extract", "act"])
def test_a_refused_answer_is_never_lost(sandbox: Environment, broken: str) -> None:
    """It is the best there is where the turns end right after it and ``extract`` fails."""
    down = Reply(error=dspy.lm15.AuthError("no key"))
    then = down if broken == "act" else code("1")
    root = acting(code("print(len(context))"), code("SUBMIT('none')"), then, best=down)
    prediction = ask(root, sandbox, max_iters=3)
    assert prediction.answer == "none" and prediction.outcome == "extracted"
    assert (prediction.outcome.limit == "max_iters") == (broken == "extract")
    better = acting(code("print(len(context))"), code("SUBMIT('none')"), code("1"))
    assert ask(better, sandbox, max_iters=3).answer == "best guess"


def test_a_refused_answer_outlives_a_stop(sandbox: Environment) -> None:
    def stop(event: Any, run: Run) -> None:
        if event.kind == "acted" and event.turn == 2:
            run.request_stop()

    down = Reply(error=dspy.lm15.AuthError("no key"))
    root = acting(code("SUBMIT('')"), code("import time\nwhile True: time.sleep(0.05)"), best=down)
    with subscribe(stop):
        prediction = ask(root, sandbox)
    assert prediction.answer == "" and (prediction.outcome, prediction.outcome.limit) == ("extracted", "interrupted")


def test_not_more_than_two_answers_are_refused(sandbox: Environment) -> None:
    root = ScriptedLM(lambda call: code(f"SUBMIT('unknown{'!' * call.turn}')"))
    prediction = ask(root, sandbox)
    assert prediction.answer == "unknown!!" and len(prediction.trajectory) == 3


class Colour(enum.StrEnum):
    NONE = "none"


class Report(pydantic.BaseModel):
    names: list[str] = []


def task(*annotations: Any) -> type[dspy.Signature]:
    outputs = {f"o{number}": (annotation, dspy.OutputField()) for number, annotation in enumerate(annotations)}
    return dspy.Signature({"q": (str, dspy.InputField()), **outputs}, "t")


@pytest.mark.parametrize(
    ("annotations", "values"),
    [
        ((bool,), (False,)),
        ((str,), ("No",)),
        ((str,), ("0",)),
        ((str,), ("The unknown soldier's tomb",)),
        ((Literal["none", "unknown"],), ("none",)),
        ((Literal["none", "unknown"],), ("unknown",)),
        ((Literal["unknown"] | None,), ("unknown",)),
        ((Colour,), (Colour.NONE,)),
        ((Report,), (Report(),)),
        ((list[Report],), ([Report()],)),
        ((list[str],), ([""],)),
        ((int,), (7,)),
        ((float,), (float("nan"),)),
        # Beside an output that says something, an empty one is an answer like any other.
        ((list[str], list[str]), (["x"], [])),
        ((list[str], bool), ([], False)),
        ((int, str), (0, "There is no such line.")),
        ((float, str), (0.0, "x")),
        ((str, str | None), ("x", None)),
        ((str, str), ("x", "")),
        ((dict[str, int], int), ({}, 3)),
        ((int | None, Report), (None, Report())),
    ],
)
def test_what_is_a_good_answer_is_not_doubted(annotations: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    outputs = {f"o{number}": value for number, value in enumerate(values)}
    signature = task(*annotations)
    for submission in (Submission(values), Submission((), outputs)):
        assert doubt(submission, outputs, signature, seen_zero=False) is None


@pytest.mark.parametrize(
    ("annotations", "values", "name", "says"),
    [
        ((str,), ("",), "o0", "empty"),
        ((str,), (" None ",), "o0", "empty"),
        ((str | None,), ("null",), "o0", "empty"),
        ((str,), ("...",), "o0", "no answer"),
        ((str,), ("<your answer>",), "o0", "no answer"),
        ((str,), ("O0",), "o0", "no answer"),
        ((str,), ("It was not found.",), "o0", "gives up"),
        ((str,), ("The date is unknown.",), "o0", "gives up"),
        ((str,), ("I cannot determine it",), "o0", "gives up"),
        ((int,), (0,), "o0", "0 before any output"),
        ((float,), (0.0,), "o0", "0 before any output"),
        ((list[str],), ([],), "o0", "empty"),
        ((Optional[str],), (None,), "o0", "empty"),  # noqa: UP045
        ((list[str], int), ([], 0), "o0", "empty"),
        ((int, str), (3, "..."), "o1", "no answer"),
        ((Any,), ({},), "o0", "empty"),
    ],
)
def test_what_is_no_answer_is_doubted_once(
    annotations: tuple[Any, ...], values: tuple[Any, ...], name: str, says: str
) -> None:
    outputs = {f"o{number}": value for number, value in enumerate(values)}
    signature = task(*annotations)
    found = doubt(Submission(values), outputs, signature, seen_zero=False)
    assert found is not None and found[0] == name and says in found[1] and len(found[1]) < 400
    again = doubt(Submission(values), outputs, signature, True, lambda other, value: other == name)
    assert again is None or again[0] != name


def test_a_container_is_no_text(sandbox: Environment) -> None:
    root = acting(code("names = ['x', 'y']\nprint(names)"), code("SUBMIT(names)"), code("SUBMIT(', '.join(names))"))
    assert ask(root, sandbox).answer == "x, y"
    assert "answer is to be one text (str), and it got a list of 2" in observation(root, 2)


def test_none_for_an_optional_output_is_doubted_at_most_once(sandbox: Environment) -> None:
    """Whatever else is said beside it: what was doubted once and comes again is meant."""
    signature = dspy.Signature("context, query -> value: Optional[int], why: str", "t")
    root = acting(code("print(1)"), code("SUBMIT(None, '')"), code("SUBMIT(None, 'null')"))
    prediction = ask(root, sandbox, signature)
    assert prediction.outcome == "submitted" and prediction.value is None
    assert [turn.output.count("value is empty (None)") for turn in prediction.trajectory][:2] == [0, 1]
    assert sum("value is empty" in turn.output for turn in prediction.trajectory) == 1
    alone = acting(code("print(1)"), code("SUBMIT(None)"))
    prediction = ask(alone, sandbox, dspy.Signature("context, query -> value: Optional[int]", "t"))
    assert prediction.outcome == "submitted" and prediction.value is None and len(prediction.trajectory) == 3


@pytest.mark.parametrize(
    ("replies", "turns", "why"),
    [
        # Nothing was looked at; nothing was found; the code failed.
        ([code("SUBMIT(7)")], 3, "no code has looked at the data"),
        ([code("print(context.count('zebra'))"), code("SUBMIT(7)")], 4, "stands nowhere in the data"),
        ([code("print([])"), code("SUBMIT(7)")], 4, "found nothing"),
        ([code("1 / 0"), code("SUBMIT(0)")], 4, "refused"),
        # The same again after another look is meant.
        ([code("SUBMIT(7)"), code("print(len(context))"), code("SUBMIT(7)")], 3, "no code has looked at the data"),
        # Typed in beside an output that says something else.
        ([code("print(len(context))"), code("print(context.count('dawn'), '67.')\nSUBMIT(7)")], 3, "does not show it"),
        ([code("print(len(context))"), code("print('There are 67.')\nSUBMIT(67)")], 2, None),
        ([code("print(len(context))"), code("print(f'{6_700:,}')\nSUBMIT(6700)")], 2, None),
        ([code("print(len(context), 'noon Zanzibar dawn boats')"), code("SUBMIT(7)")], 2, None),
        ([code("n = 0 * len(context)\nprint('none', n)"), code("SUBMIT(n)")], 2, None),
    ],
)
def test_a_number_that_nothing_supports_is_refused_until_code_has_run(
    sandbox: Environment, replies: list[str], turns: int, why: str | None
) -> None:
    root = acting(*replies)
    prediction = ask(root, sandbox, "context, query -> count: int", guidance={"name_words": False})
    assert prediction.outcome == "submitted" and len(prediction.trajectory) == turns
    refused = [turn.output for turn in prediction.trajectory if "SUBMIT was refused" in turn.output]
    assert len(refused) == 0 if why is None else 0 < len(refused) <= 2 and why in refused[0]
    assert why is None or "the same answer again" in refused[-1] or len(refused) == 1


def test_a_typed_number_beside_a_computed_output_is_no_guess(sandbox: Environment) -> None:
    root = acting(code("print(context[:9])\nSUBMIT(answer=context[:5], confidence=0.9)"))
    prediction = ask(root, sandbox, "context, query -> answer: str, confidence: float")
    assert (prediction.answer, prediction.confidence) == ("day 0", 0.9) and len(prediction.trajectory) == 1


class Odd(pydantic.BaseModel):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")


@pytest.mark.parametrize("value", [np.zeros(3), Odd(), {"x": np.ones(2)}])
def test_values_that_cannot_be_compared_are_answers_like_others(value: Any) -> None:
    """Arrays have no single truth, and a model's own comparison may fail: neither ends the run."""
    guide = Guide(Run(RLM(task(Any, str)), {"q": "x"}, Limits(), lambda: None))
    cell = CellResult(submission=Submission((value, "...")))
    outputs = {"o0": value, "o1": "..."}
    assert "no answer" in (guide.doubt("SUBMIT(x, y)", cell, outputs) or "")
    assert guide.doubt("SUBMIT(x, y)", cell, outputs) is None


def test_a_value_with_an_odd_text_does_not_end_the_run(sandbox: Environment) -> None:
    prediction = ask(acting(code("print(1)"), code("SUBMIT(10 ** 5000)")), sandbox, "context, query -> n: int")
    assert prediction.n == 10**5000
    prediction = ask(acting(code("print(1)"), code("print(2); SUBMIT(1e999)")), sandbox, "context, query -> n: float")
    assert prediction.n == float("inf")


def test_steps_that_print_nothing_or_look_at_numbers_again_go_on(sandbox: Environment) -> None:
    step = code("pos = globals().get('pos', 0) + 1")
    root = acting(step, step, step, step, code("print(pos)\nSUBMIT(str(pos))"))
    prediction = ask(root, sandbox)
    assert (prediction.answer, prediction.outcome) == ("4", "submitted")
    looks = [code(f"print(context.count({word!r}))") for word in ("dawn", "noon", "dawn", "boat3", "noon", "boat4")]
    prediction = ask(acting(*looks, code("SUBMIT(str(len(context)))")), sandbox)
    assert prediction.outcome == "submitted"


def test_words_that_the_first_code_left_out_are_nothing_against_the_second(sandbox: Environment) -> None:
    first = "print([l for l in context.splitlines() if 'Zanzibar' in l][:2])"
    second = "n = sum('Zanzibar' in l and 'dawn' in l for l in context.splitlines())\nprint(n)"
    root = acting(code(first), code(second), code("SUBMIT(n)"))
    prediction = ask(root, sandbox, "context, query -> n: int")
    assert "'dawn'" in observation(root) and len(prediction.trajectory) == 3 and prediction.n == 14


def test_an_answer_under_a_condition_is_computed(sandbox: Environment) -> None:
    root = acting(code("n = context.count('dawn')\nprint(n)\nif n > 3:\n    SUBMIT(1)\nelse:\n    SUBMIT(0)"))
    assert len(ask(root, sandbox, "context, query -> a: int").trajectory) == 1


def test_a_syntax_error_is_told_as_one(sandbox: Environment) -> None:
    broken = 'context = "\\n".join(context.splitlines())\nprint(context[:10)'
    root = acting(code(broken), code("SUBMIT(str(len(context)))"))
    prediction = ask(root, sandbox)
    assert "SyntaxError" in prediction.trajectory[0].output


def test_no_answer_is_held_back_when_time_is_short(sandbox: Environment) -> None:
    root = acting(code("import time\ntime.sleep(2)\nprint(7)"), code("SUBMIT(0)"))
    prediction = ask(root, sandbox, "context, query -> a: int", max_seconds=4)
    assert prediction.outcome == "submitted" and prediction.a == 0


@pytest.mark.parametrize(
    ("aid", "replies"),
    [
        ("break_repeats", [code("print(len(context))"), code("print(len(context))"), code("SUBMIT('x y')")]),
        ("check_answers", [code("print(len(context))"), code("SUBMIT('')"), code("SUBMIT('x y')")]),
        ("keep_inputs", [code('context = "day 0 boat0"\nprint(1)'), code("SUBMIT('x y')")]),
        ("explain_empty", [code("print(context.count('zebra'))"), code("SUBMIT('x y')")]),
        ("mend_conditions", [code("print(len([l for l in context.splitlines() if 'zanzibar' in l]))")]),
        ("name_words", [code("print(context.count('Zanzibar'))"), code("SUBMIT('x y')")]),
        ("hint_batches", [code("for n in range(4):\n  try: llm_query(f'q {n}')\n  except Exception: pass")]),
        ("salvage", ["I look.\n```\nprint(len(context))", code("SUBMIT('x y')")]),
    ],
)
def test_an_aid_that_did_something_is_in_the_events(sandbox: Environment, aid: str, replies: list[str]) -> None:
    acted: list[Aided] = []
    with subscribe(lambda event, run: acted.append(event) if isinstance(event, Aided) else None):
        ask(acting(*replies, code("SUBMIT('x y')")), sandbox, guidance={**Guidance.of(False).to_dict(), aid: True})
    assert {event.aid for event in acted} == {aid} and all(event.turn >= 1 for event in acted)
    assert acted[0].to_dict()["kind"] == "aided"
    acted.clear()
    with subscribe(lambda event, run: acted.append(event) if isinstance(event, Aided) else None):
        ask(acting(*replies, code("SUBMIT('x y')")), sandbox, guidance=False)
    assert acted == []


def test_a_root_that_repeats_itself_is_asked_again_at_a_higher_temperature(sandbox: Environment) -> None:
    same, other = code("print(len(context))"), code("SUBMIT('x y')")
    root = ScriptedLM(lambda call: other if call.request.config.temperature == 0.7 else same, temperature=0.0)
    prediction = ask(root, sandbox)
    assert prediction.answer == "x y" and prediction.outcome == "submitted" and len(prediction.trajectory) == 3


def test_a_model_without_a_temperature_is_given_none(sandbox: Environment) -> None:
    root = acting(code("print(len(context))"))
    prediction = ask(root, sandbox)
    assert prediction.outcome.limit == "repeats"
    assert all(call.request.config.temperature is None for call in root.calls)


GOING_ON = [
    ["it = iter([5, 5, 5, 5, 9])", *["x = next(it)\nprint(x)"] * 5, "SUBMIT(str(x))"],
    ["at = 0\ndef step():\n    global at\n    at += 1\n    print('ok')", *["step()"] * 5, "SUBMIT(str(at))"],
    ["print(context[:9])", "print('a')", "print(context[:9])", "print('b')", "print(context[:9])", "SUBMIT('x y')"],
]


@pytest.mark.parametrize("cells", GOING_ON)
def test_code_that_may_go_on_is_told_and_not_ended(sandbox: Environment, cells: list[str]) -> None:
    prediction = ask(acting(*map(code, cells)), sandbox)
    assert prediction.outcome == "submitted" and len(prediction.trajectory) == len(cells)


def test_an_input_may_be_let_go_of(sandbox: Environment) -> None:
    root = acting(code("n = context.count('dawn')\ncontext = ''\nprint(n)"), code("SUBMIT(str(n))"))
    assert ask(root, sandbox).answer == str(BOATS.count("dawn"))
    typed = code(f"context = {'day 0 ' * 40!r}\nprint(len(context))")
    prediction = ask(acting(typed, typed, code("SUBMIT(str(len(context)))")), sandbox)
    assert "was not run" in prediction.trajectory[0].output and prediction.answer == "240"


def test_what_the_host_was_asked_for_is_not_asked_again(sandbox: Environment) -> None:
    paid: list[int] = []

    def pay(amount: int) -> int:
        """Pay."""
        paid.append(amount)
        return 0

    root = acting(code("result = pay(3)\nSUBMIT(result)"))
    prediction = ask(root, sandbox, "context, query -> answer: int", tools=[pay])
    assert prediction.answer == 0 and paid == [3]


def test_a_literal_of_numbers_is_chosen(sandbox: Environment) -> None:
    signature = dspy.Signature("context, query -> answer: Literal[0, 1]")
    root = acting(code("print(len(context))"), code("SUBMIT(0)"))
    assert len(ask(root, sandbox, signature).trajectory) == 2


def test_an_lm_that_refuses_another_temperature_is_asked_again_without(sandbox: Environment) -> None:
    def policy(call: Call) -> str:
        if call.request.config.temperature:
            raise ValueError("this model takes no temperature but 0")
        return code("print(len(context))") if call.turn < 2 else code("SUBMIT('x y')")

    assert ask(ScriptedLM(policy, temperature=0), sandbox).answer == "x y"


def test_a_temperature_that_is_higher_already_stays(sandbox: Environment) -> None:
    root = ScriptedLM(lambda call: code("print(len(context))") if call.turn < 2 else code("SUBMIT('x y')"))
    rlm = RLM("context, query -> answer", interpreter=sandbox)
    rlm.act.config.update(temperature=1.2)
    with dspy.context(lm=root):
        assert rlm(context=BOATS, query=QUESTION).answer == "x y"
    assert {call.request.config.temperature for call in root.calls} == {1.2}


def test_a_task_of_one_long_word_takes_no_time() -> None:
    assert len(first_look.task_words("ACGT" * 20_000)) == 0


def test_the_import_that_a_known_name_lacks_is_named(sandbox: Environment) -> None:
    root = acting(code("print(Counter(context.split()).most_common(1))"), code("SUBMIT('x y')"))
    ask(root, sandbox)
    assert "Put this before it: from collections import Counter" in observation(root)


def test_a_question_is_not_searched_for_what_code_looks_for(sandbox: Environment) -> None:
    root = acting(code("print([r for r in rows if 'Zanzibar' in r])"), code("SUBMIT('x y')"))
    with dspy.context(lm=root):
        RLM("rows: list[str], query -> answer", interpreter=sandbox)(rows=["a"] * 900, query=QUESTION)
    assert "In query" not in observation(root)


def test_an_echo_with_another_turn_number_is_a_repetition(sandbox: Environment) -> None:
    echo = "Hm.\n[turn {} of 20]\nTask: x"
    root = ScriptedLM(lambda call: BEST if "No more code" in call.prompt else echo.format(call.number))
    assert ask(root, sandbox).outcome.limit == "repeats"


def test_a_first_look_that_fails_ends_no_run(sandbox: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*given: Any) -> str:
        raise ValueError("no look")

    monkeypatch.setattr(first_look, "look", look)
    notes: list[str] = []
    with subscribe(lambda event, run: notes.append(getattr(event, "message", ""))):
        root = acting(code("print(len(context))"), code("SUBMIT('x y')"))
        assert ask(root, sandbox).outcome == "submitted"
    assert "It begins and ends: 'day 0 boat0" in root.calls[0].own[0]["content"]
    assert any("no first look at context: ValueError: no look" in note for note in notes)
