"""A conversation that becomes too long goes on from a summary; one that is refused as too long goes on shorter."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dspy
import litellm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, replay, subscribe
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError, PromptTooLongError, RLMError
from rlm_dspy.models import local_lm
from rlm_dspy.shorten import fitting, halve
from rlm_dspy.signatures.conversation import Branch, Conversation, Exchange
from rlm_dspy.testing import Call, Policy, Reply, ScriptedLM, code
from rlm_dspy.window import output_chars, room_for_output, window_of

SUMMARY = "Reply with the summary alone"
LAST = "No more code can run"
BEST = "[[ ## a ## ]]\nbest guess\n\n[[ ## completed ## ]]"
WINDOW = 6_000
"""Tokens; the contract has about 1,000 of them, a turn of `steps` 800."""


def steps(
    count: int, then: str, summary: str | Reply | Callable[[Call], Any] = "All is well.", size: int = 3_000
) -> Policy:
    """``count`` turns that make a variable and print ``size`` characters, then the code ``then``."""
    turns = iter(range(1, count + 1))

    def policy(call: Call) -> str | Reply:
        if SUMMARY in call.prompt:
            return summary(call) if callable(summary) else summary
        if LAST in call.prompt:
            return BEST
        turn = next(turns, None)
        if turn is None:
            return code(then)
        return code(f"v{turn} = list(range({turn} * 1000))\nprint('{turn % 10}' * {size})", f"step {turn}")

    return policy


def run(root: ScriptedLM, sandbox: Any, signature: str = "q -> a", **options: Any) -> tuple[Any, list[Any]]:
    log: list[Any] = []
    inputs = options.pop("inputs", {"q": "x"})
    with dspy.context(lm=root), subscribe(lambda event, run: log.append(event)):
        return RLM(signature, interpreter=sandbox, **options)(**inputs), log


def compacted(log: list[Any]) -> list[Any]:
    return [event for event in log if event.kind == "compacted"]


def roots(lm: ScriptedLM) -> list[list[dict[str, str]]]:
    """The messages of the requests for an action, in order."""
    return [call.messages for call in lm.calls if SUMMARY not in call.prompt and LAST not in call.prompt]


def total(messages: list[dict[str, str]]) -> int:
    return sum(len(message["content"]) for message in messages)


# ------------------------------------------------------------------------------------------------ the new branch


def test_the_branch_keeps_the_contract_and_the_last_turns_and_only_grows(sandbox: Environment) -> None:
    lm = ScriptedLM(steps(7, "SUBMIT(a=str(len(v1) + len(v7)))"))
    prediction, log = run(lm, sandbox, context_window=WINDOW)
    assert (prediction.outcome, prediction.a, len(prediction.trajectory)) == ("submitted", "8000", 8)
    (event,) = compacted(log)
    assert event.summary == "All is well." and event.tokens_after < event.tokens_before
    requests = roots(lm)
    breaks = [n for n in range(1, len(requests)) if requests[n][: len(requests[n - 1])] != requests[n - 1]]
    assert breaks == [event.turn], "one new branch, before and after which each request begins with the one before"
    before, after = requests[event.turn - 1], requests[event.turn]
    first = next(n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
    assert after[first]["role"] == "user" and after[first]["content"].startswith(before[first]["content"])
    assert "All is well." in after[first]["content"]
    # The turn before the branch stands as it was first shown.
    assert after[first + 1]["content"].startswith("step ") and str(event.turn) * 3_000 in after[-1]["content"]
    assert total(after) < total(before)


def test_the_summary_is_asked_for_behind_what_was_sent(sandbox: Environment) -> None:
    """So that the whole conversation is read from the provider's cache."""
    lm = ScriptedLM(steps(20, "SUBMIT(a='done')", size=5_000))
    run(lm, sandbox, context_window=24_000, max_iters=30)
    asked = next(n for n, call in enumerate(lm.calls) if SUMMARY in call.prompt)
    before, request = lm.calls[asked - 1].messages, lm.calls[asked].messages
    assert request[: len(before)] == before and len(request) == len(before) + 2
    assert lm.calls[asked].prompt.startswith("Output:\n")


def test_a_summary_that_forgets_everything_loses_nothing(sandbox: Environment) -> None:
    then = "SUBMIT(a=str([len(history), history[0]['turn'], history[0]['code'][:2], len(history[0]['output'])]))"
    lm = ScriptedLM(steps(7, then, summary="Nothing."))
    prediction, log = run(lm, sandbox, context_window=WINDOW)
    (event,) = compacted(log)
    assert prediction.a == str([event.turn, 1, "v1", 3_000])
    told = next(m["content"] for m in lm.calls[-1].messages if "# So far" in m["content"])
    for turn in range(1, event.turn + 1):
        assert f"`v{turn}` (list {turn},000 items)" in told
    assert "`q` (str = 'x')" in told and "`history` has all turns until now in full" in told


@pytest.mark.parametrize("where", ["inprocess", dspy.LocalInterpreter], ids=["in process", "one of DSPy's own"])
def test_in_every_kind_of_interpreter(where: Any) -> None:
    lm = ScriptedLM(steps(7, "SUBMIT(a=str(len(history)) + ' ' + str(len(v7)))"))
    prediction, log = run(lm, where, context_window=WINDOW)
    (event,) = compacted(log)
    assert prediction.a == f"{event.turn} 7000"
    assert any("`v1` (list 1,000 items)" in m["content"] for m in lm.calls[-1].messages)


def test_history_is_refreshed_and_summaries_build_on_each_other(sandbox: Environment) -> None:
    asked: list[list[dict[str, str]]] = []

    def summary(call: Call) -> str:
        asked.append(call.messages)
        return f"summary {len(asked)}"

    lm = ScriptedLM(steps(12, "SUBMIT(a=str(len(history)))", summary=summary))
    prediction, log = run(lm, sandbox, context_window=WINDOW)
    events = compacted(log)
    assert len(events) > 1 and prediction.a == str(events[-1].turn)
    assert any("summary 1" in message["content"] for message in asked[1])


@pytest.mark.parametrize(
    ("signature", "inputs", "setup"),
    [("history, q -> a", {"history": "mine", "q": "x"}, ""), ("q -> a", {"q": "x"}, "history = 'mine'")],
    ids=["an input", "a variable of the code's own"],
)
def test_another_history_is_left_alone(sandbox: Environment, signature: str, inputs: Any, setup: str) -> None:
    rest = steps(7, "SUBMIT(a=history + str(len(turns_so_far)))")
    begun: list[Any] = []

    def policy(call: Call) -> Any:
        if setup and not begun:
            begun.append(1)
            return code(f"{setup}\nprint('{'z' * 500}')")
        return rest(call)  # type: ignore[operator]

    prediction, log = run(ScriptedLM(policy), sandbox, signature, inputs=inputs, context_window=WINDOW)
    assert prediction.a == f"mine{compacted(log)[-1].turn}"


def test_history_is_set_again_after_the_session_was_restarted(sandbox: Environment) -> None:
    died: list[int] = []

    def policy(call: Call) -> Any:
        if died:
            return code("SUBMIT(a=str(len(history)))")
        if "# So far" in "".join(m["content"] for m in call.messages) and SUMMARY not in call.prompt:
            died.append(1)
            return code("import os\nos._exit(3)")
        return rest(call)  # type: ignore[operator]

    rest = steps(7, "")
    prediction, log = run(ScriptedLM(policy), sandbox, context_window=WINDOW)
    assert prediction.a == str(compacted(log)[0].turn)


def test_instructions_of_the_summary_can_be_optimised_and_saved(sandbox: Environment) -> None:
    program = RLM("q -> a", interpreter=sandbox, context_window=WINDOW)
    program.compact.signature = program.compact.signature.with_instructions("Count the sheep.")
    other = RLM("q -> a", interpreter=sandbox, context_window=WINDOW)
    other.load_state(json.loads(json.dumps(program.dump_state())))
    lm = ScriptedLM(steps(7, "SUBMIT(a='done')"))
    with dspy.context(lm=lm):
        other(q="x")
    (asked,) = (call for call in lm.calls if SUMMARY in call.prompt)
    assert "Count the sheep." in asked.prompt


def test_state_from_before_there_was_a_summary_is_loaded() -> None:
    state = RLM("q -> a").dump_state()
    del state["compact"]
    program = RLM("q -> a")
    own = program.compact.signature.instructions
    program.load_state(state)
    assert program.compact.signature.instructions == own


# ------------------------------------------------------------------------------------------------------ bounds


def test_it_is_paid_for_like_any_other_call(sandbox: Environment) -> None:
    lm = ScriptedLM(steps(7, "SUBMIT(a='done')"))
    prediction, _ = run(lm, sandbox, context_window=WINDOW)
    roles = prediction.usage["by_role"]
    assert roles["compact"]["lm_calls"] == 1 and roles["compact"]["input_tokens"] > 1_000
    assert sum(role["input_tokens"] for role in roles.values()) == prediction.usage["input_tokens"]
    assert prediction.usage["turns"] == len(prediction.trajectory) == 8


def test_a_childs_summary_is_one_of_its_parents_sub_calls(sandbox: Environment) -> None:
    child = steps(7, "SUBMIT(response=str(len(history)))")

    def policy(call: Call) -> Any:
        if any("CHILD" in message["content"] for message in call.own[:1]):
            return child(call)  # type: ignore[operator]
        return code("SUBMIT(a=rlm_query('CHILD: do it'))")

    prediction, log = run(ScriptedLM(policy), sandbox, context_window=WINDOW, max_depth=2, guidance=False)
    events = [event for event in log if event.kind == "compacted" and event.depth == 1]
    assert prediction.outcome == "submitted" and prediction.a == str(events[-1].turn)
    assert prediction.usage["calls"] == 8 + len(events)


@pytest.mark.parametrize("kind", ["an error", "no text", "a module of another kind", "no budget"])
def test_without_a_summary_the_oldest_outputs_are_left_out(sandbox: Environment, kind: str) -> None:
    summary: Any = {"an error": Reply(error=ValueError("no")), "no text": "  "}.get(kind, "fine")
    lm = ScriptedLM(steps(6, "SUBMIT(a=str(len(history[0]['output'])))", summary=summary))
    program = RLM("q -> a", interpreter=sandbox, context_window=WINDOW, max_iters=9)
    if kind == "a module of another kind":
        program.compact = Broken()
    if kind == "no budget":
        # All but the compaction is for nothing, so that it alone passes the limit.
        program = program.with_options(max_cost=0.03, prices={"scripted/lm": (1, 1), "dear/lm": (1_000, 1_000)})
        program.compact.lm = ScriptedLM(["never asked"], model="dear/lm")
    log: list[Any] = []
    with dspy.context(lm=lm), subscribe(lambda event, run: log.append(event)):
        prediction = program(q="x")
    assert (prediction.outcome, prediction.a) == ("submitted", "3000")
    assert compacted(log) and not any(event.summary for event in compacted(log))
    assert any(event.kind == "note" and "no summary of the conversation" in event.message for event in log)
    assert any("characters left out" in message["content"] for message in lm.calls[-1].messages)


class Broken(dspy.Module):
    """In place of the predictor."""

    def forward(self, **inputs: Any) -> Any:
        raise ValueError("broken")


def test_what_cannot_be_made_shorter_ends_at_a_limit_and_not_in_a_loop(sandbox: Environment) -> None:
    lm = ScriptedLM(steps(1_000, "", summary=lambda call: "long " * 5_000, size=6_000))
    prediction, log = run(lm, sandbox, context_window=2_200, max_iters=40)
    assert (prediction.outcome, prediction.outcome.limit, prediction.a) == ("extracted", "context_window", "best guess")
    struck = next(event for event in log if event.kind == "limit_struck")
    assert (struck.limit, struck.where) == ("context_window", "compact")
    assert sum(SUMMARY in call.prompt for call in lm.calls) <= 20


def test_there_are_at_most_so_many_in_a_run(sandbox: Environment) -> None:
    lm = ScriptedLM(steps(1_000, "", size=9_000))
    prediction, log = run(lm, sandbox, context_window=4_500, max_iters=12)
    assert prediction.outcome == "extracted" and 1 <= len(compacted(log)) <= 6
    assert all(event.tokens_after < 0.8 * event.tokens_before for event in compacted(log))


def test_switched_off_nothing_is_compacted(sandbox: Environment) -> None:
    lm = ScriptedLM(steps(7, "SUBMIT(a='done')"))
    prediction, log = run(lm, sandbox, context_window=WINDOW, compaction=False)
    assert prediction.outcome == "submitted" and not compacted(log)


def test_the_share_is_where_it_begins(sandbox: Environment) -> None:
    begins = {}
    for share in (0.4, 0.7):
        lm = ScriptedLM(steps(7, "SUBMIT(a='done')"))
        _, log = run(lm, sandbox, context_window=WINDOW, compaction=share)
        begins[share] = compacted(log)[0].tokens_before
    assert 0.4 * WINDOW < begins[0.4] < begins[0.7]


@pytest.mark.parametrize("compaction", [0, 1, 1.0, 0.0, -0.5, "yes", None])
def test_shares_that_make_no_sense_are_refused(compaction: Any) -> None:
    with pytest.raises(ConfigurationError, match="compaction must be True, False, or the share"):
        RLM("q -> a", compaction=compaction)


@pytest.mark.parametrize("window", [0, -1, 100, 1e6, True, "8k"])
def test_windows_that_make_no_sense_are_refused(window: Any) -> None:
    with pytest.raises(ConfigurationError, match="context_window must be a whole number of tokens"):
        RLM("q -> a").with_options(context_window=window)


# ------------------------------------------------------------------------------------------------------ the window


def test_the_window_is_the_users_then_the_lms_then_the_published_one() -> None:
    knowing = Knowing(["x"])
    assert window_of(knowing) == 12_345 and window_of(knowing, 999) == 999
    assert window_of(dspy.LM("openai/gpt-4o-mini")) == 128_000
    assert window_of(dspy.LM("openai/no-such-model-of-anybody")) is None
    # Played by an engine of its user's own: the name says nothing.
    assert window_of(ScriptedLM(["x"], model="openai/gpt-4o-mini")) is None


class Knowing(ScriptedLM):
    """An LM that knows its window."""

    context_window = 12_345


def test_a_local_model_knows_its_window() -> None:
    lm = local_lm(context=4_096)
    assert window_of(lm) == 4_096


def test_room_is_kept_for_the_reply() -> None:
    assert room_for_output(ScriptedLM(["x"], max_tokens=700), 16_000) == 700
    assert room_for_output(ScriptedLM(["x"], max_tokens=50_000), 16_000) == 4_000
    assert room_for_output(object(), 128_000) == 4_096


def test_a_small_window_shows_less_of_an_output(sandbox: Environment) -> None:
    assert output_chars(10_000, None) == output_chars(10_000, 128_000) == 10_000
    lm = ScriptedLM([code("print('y' * 50_000)"), code("SUBMIT(a='done')")])
    run(lm, sandbox, context_window=4_000)
    assert "4,000 characters of output are shown" in lm.calls[0].prompt + str(lm.calls[0].messages)
    assert 3_000 < lm.calls[1].prompt.count("y") < 4_100


# ------------------------------------------------------------------------------------------------------ overflow


def limited(policy: Policy, most: int, error: Callable[[], Exception]) -> Policy:
    """``policy`` of a model that refuses more than ``most`` characters."""

    def check(call: Call) -> Any:
        return Reply(error=error()) if total(call.messages) > most else policy(call)  # type: ignore[operator]

    return check


OVERFLOWS: dict[str, Callable[[], Exception]] = {
    "dspy": lambda: dspy.lm15.ContextLengthError("too long"),
    "litellm": lambda: litellm.ContextWindowExceededError("too long", model="m", llm_provider="openai"),
    "a plain 400": lambda: dspy.lm15.InvalidRequestError("exceeds the available context size", status=400),
}


@pytest.mark.parametrize("error", OVERFLOWS.values(), ids=OVERFLOWS)
@pytest.mark.parametrize("known", [None, 100_000], ids=["window unknown", "window larger than it is"])
def test_a_request_that_is_refused_as_too_long_is_made_shorter(
    sandbox: Environment, error: Callable[[], Exception], known: int | None
) -> None:
    lm = ScriptedLM(limited(steps(9, "SUBMIT(a=str([len(v1), len(history)]))"), 16_000, error))
    prediction, log = run(lm, sandbox, context_window=known)
    assert prediction.outcome == "submitted" and len(prediction.trajectory) == 10
    assert prediction.a == str([1_000, compacted(log)[-1].turn])
    # It learns: the same mistake is not made again every turn.
    assert sum(total(call.messages) > 16_000 for call in lm.calls) == 1


def test_a_summary_that_is_refused_as_well_is_done_without(sandbox: Environment) -> None:
    def no_summary(call: Call) -> Reply:
        return Reply(error=dspy.lm15.ContextLengthError("too long"))

    policy = steps(9, "SUBMIT(a=str(len(history)))", summary=no_summary)
    lm = ScriptedLM(limited(policy, 16_000, OVERFLOWS["dspy"]))
    prediction, log = run(lm, sandbox)
    assert prediction.outcome == "submitted" and compacted(log) and not compacted(log)[0].summary


def test_switched_off_a_request_that_is_too_long_is_a_limit(sandbox: Environment) -> None:
    lm = ScriptedLM(limited(steps(9, ""), 12_000, OVERFLOWS["dspy"]))
    prediction, _ = run(lm, sandbox, compaction=False)
    assert (prediction.outcome, prediction.outcome.limit, prediction.a) == ("extracted", "context_window", "best guess")


@pytest.mark.parametrize("window", [None, WINDOW])
def test_extract_always_fits(sandbox: Environment, window: int | None) -> None:
    """Five turns fit; the last question behind them does not."""
    calls: list[int] = []

    def policy(call: Call) -> Any:
        if LAST in call.prompt:
            calls.append(total(call.messages))
            return BEST if calls[-1] < 9_000 else Reply(error=dspy.lm15.ContextLengthError("too long"))
        return acts(call)  # type: ignore[operator]

    acts = steps(5, "")
    prediction, _ = run(ScriptedLM(policy), sandbox, max_iters=5, context_window=window, compaction=False)
    assert (prediction.outcome, prediction.a) == ("extracted", "best guess")
    assert calls == sorted(calls, reverse=True)


def test_a_first_message_that_fits_nowhere_is_refused_before_it_is_sent(sandbox: Environment) -> None:
    lm = ScriptedLM(["never asked"])
    task = dspy.Signature("q -> a", "Do this. " * 2_000)
    with dspy.context(lm=lm), pytest.raises(PromptTooLongError, match="context window of 2,000 tokens") as raised:
        RLM(task, interpreter=sandbox, context_window=2_000)(q="x")
    assert isinstance(raised.value, dspy.ContextWindowExceededError) and isinstance(raised.value, RLMError)
    assert "Shorten these" in str(raised.value) and "context_window=" in str(raised.value) and not lm.calls


def test_a_first_message_that_is_refused_says_what_is_in_it(sandbox: Environment) -> None:
    lm = ScriptedLM(limited(steps(1, ""), 100, OVERFLOWS["dspy"]))
    with dspy.context(lm=lm), pytest.raises(PromptTooLongError, match="never large inputs"):
        RLM("q -> a", interpreter=sandbox)(q="x")


def test_a_sub_call_that_is_too_long_says_to_send_less(sandbox: Environment) -> None:
    source = """
replies = llm_query_batched(["short", "long " * 1000])
print(replies[0], "|", replies[1])
try:
    llm_query("long " * 1000)
except Exception as error:
    SUBMIT(a=replies[0] + "|" + replies[1] + "|" + str(error))
"""
    sub = ScriptedLM(limited(lambda call: "fine", 2_000, OVERFLOWS["dspy"]))
    prediction, _ = run(ScriptedLM([code(source)]), sandbox, sub_lm=sub, guidance=False)
    first, second, third = prediction.a.split("|")
    assert first == "fine" and second.startswith("[ERROR]")
    for text in (second, third):
        assert "5,000 characters" in text and "Send less text" in text and "batched" in text


@given(
    sizes=st.lists(st.integers(0, 12_000), min_size=1, max_size=12),
    most=st.integers(7_000, 30_000),
    known=st.booleans(),
    summary=st.sampled_from(["short", "long " * 3_000, ""]),
)
@settings(max_examples=25, deadline=None)
def test_whatever_the_sizes_a_run_ends_with_an_answer(sizes: list[int], most: int, known: bool, summary: str) -> None:
    todo = iter(sizes)

    def acts(call: Call) -> Any:
        if SUMMARY in call.prompt:
            return summary
        if LAST in call.prompt:
            return BEST
        size = next(todo, None)
        return code("SUBMIT(a='done')" if size is None else f"print('{size} ' * {size // 5 + 1})")

    lm = ScriptedLM(limited(acts, most, OVERFLOWS["dspy"]))
    window = most // 4 if known else None
    prediction, log = run(lm, "inprocess", context_window=window, guidance=False, max_iters=14)
    assert (prediction.outcome, prediction.a) in (("submitted", "done"), ("extracted", "best guess"))
    assert prediction.outcome != "extracted" or prediction.outcome.limit == "context_window"
    assert len(compacted(log)) <= 7
    refused = sum(total(call.messages) > most for call in lm.calls)
    assert refused <= (4 if known else 2 * len(sizes) + 4)
    # Nothing that was done is missing from the trajectory.
    assert len(prediction.trajectory) == len(sizes) + (prediction.outcome == "submitted") or prediction.outcome.limit


# ------------------------------------------------------------------------------------------------ refused replies

FILTERED: dict[str, Any] = {
    "azure": Reply(error=dspy.lm15.InvalidRequestError("filtered", provider_code="content_filter", status=400)),
    "litellm": Reply(error=litellm.ContentPolicyViolationError("no", model="m", llm_provider="azure")),
    "in words": Reply(error=dspy.lm15.InvalidRequestError("violates our content policy", status=400)),
    "empty": Reply(""),
    "blank": Reply(" \n "),
    "only reasoning": Reply("", reasoning="I wonder whether I should answer at all."),
}


@pytest.mark.parametrize("reply", FILTERED.values(), ids=FILTERED)
@pytest.mark.parametrize("first", [True, False], ids=["at once", "later"])
def test_a_reply_that_is_held_back_or_empty_is_a_turn(sandbox: Environment, reply: Reply, first: bool) -> None:
    script = [reply, code("SUBMIT(a='done')")] if first else [code("print(1)"), reply, code("SUBMIT(a='done')")]
    lm = ScriptedLM(script)
    prediction, _ = run(lm, sandbox)
    assert (prediction.outcome, prediction.a) == ("submitted", "done")
    turn = prediction.trajectory[0 if first else 1]
    assert turn.error and ("Your reply was empty" in turn.output or "content filter refused" in turn.output)
    assert turn.output in lm.calls[-1].prompt


@pytest.mark.parametrize("reply", FILTERED.values(), ids=FILTERED)
@pytest.mark.parametrize(("options", "limit"), [({"max_errors": 2}, "max_errors"), ({}, "repeats")])
def test_several_in_a_row_end_the_turns(sandbox: Environment, reply: Reply, options: Any, limit: str) -> None:
    def policy(call: Call) -> Any:
        return BEST if LAST in call.prompt else reply

    prediction, _ = run(ScriptedLM(policy), sandbox, **options)
    assert (prediction.outcome, prediction.outcome.limit, prediction.a) == ("extracted", limit, "best guess")


def test_other_errors_of_a_provider_are_still_errors(sandbox: Environment) -> None:
    denied = Reply(error=dspy.lm15.AuthError("the content filter has no such key", status=401))
    with pytest.raises(dspy.LMAuthError), dspy.context(lm=ScriptedLM([denied])):
        RLM("q -> a", interpreter=sandbox)(q="x")


# ------------------------------------------------------------------------------------------------------ shortening

_TEXT = st.integers(0, 5_000).map(lambda size: "t" * size)


@given(st.lists(st.tuples(_TEXT, _TEXT), max_size=8), st.integers(0, 40_000), st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_shortening_fits_or_leaves_the_first_message_alone(
    turns: list[tuple[str, str]], chars: int, since: int
) -> None:
    conversation = Conversation("contract", [Exchange(reply, output, "[status]") for reply, output in turns])
    conversation.branch = Branch("note", min(since, len(turns)))
    branch = fitting(conversation, chars)
    least = conversation.chars(Branch("", len(turns), len(turns), len(turns)))
    assert conversation.chars(branch) <= max(chars, least)
    whole = list(conversation.exchanges)
    while halve(conversation):
        assert conversation.messages()[0]["content"].startswith("contract")
        roles = [message["role"] for message in conversation.messages()]
        assert roles == ["user", *["assistant", "user"] * (len(roles) // 2)]
    assert conversation.chars() == least and conversation.exchanges == whole


def test_turns_after_the_branch_are_sent_whole() -> None:
    conversation = Conversation("contract", [Exchange("r", "o" * 9_000), Exchange("r", "o" * 9_000)])
    conversation.branch = fitting(conversation, 4_000)
    assert conversation.chars() <= 4_000
    conversation.exchanges.append(Exchange("r", "new " * 2_000))
    assert conversation.messages()[-1]["content"] == "Output:\n" + "new " * 2_000


# ------------------------------------------------------------------------------------------- sessions and replays


def test_a_session_goes_on_from_a_summary_with_the_task_of_the_call(sandbox: Environment, tmp_path: Any) -> None:
    lm = ScriptedLM(steps(9, "SUBMIT(a=str([len(history), history[0]['code'][:2], len(v1)]))"))
    program = RLM("q -> a", interpreter=sandbox, context_window=WINDOW, guidance={"check_answers": False})
    log: list[Any] = []
    with dspy.context(lm=lm), subscribe(lambda event, run: log.append(event)), program.session() as session:
        first = session.program.with_options(max_iters=4)
        session.program, whole = first, session.program
        session(q="the first question")
        session.program = whole
        answer = session(q="the second question")
        session.save(tmp_path / "saved")
    assert compacted(log) and answer.a == str([4 + compacted(log)[-1].turn, "v1", 1_000])
    messages = "".join(message["content"] for message in lm.calls[-1].own)
    assert "the second question" in messages and "# So far" in messages
    again = ScriptedLM(["```python\nSUBMIT(a=str(len(history)))\n```"])
    with dspy.context(lm=again), program.resume(tmp_path / "saved") as resumed:
        assert resumed(q="the third question").a == str(4 + compacted(log)[-1].turn)
    sent = "".join(message["content"] for message in again.calls[0].messages)
    assert "# So far" in sent and "the third question" in sent and "1" * 3_000 not in sent


@pytest.mark.parametrize("most", [100_000, 16_000], ids=["before it was too long", "when it was refused"])
def test_a_recorded_run_is_compacted_again_without_being_asked(sandbox: Environment, most: int) -> None:
    policy = steps(9, "SUBMIT(a=str(len(history)))")
    filtered = [Reply(error=dspy.lm15.InvalidRequestError("no", provider_code="content_filter", status=400))]

    def once(call: Call) -> Any:
        return filtered.pop() if filtered else policy(call)  # type: ignore[operator]

    lm = ScriptedLM(limited(once, most, OVERFLOWS["dspy"]))
    prediction, log = run(lm, sandbox, context_window=WINDOW if most > 50_000 else None)
    asked = len(lm.calls)
    again = replay(prediction.trajectory, RLM("q -> a", interpreter=sandbox))
    assert again.differences == () and again.a == prediction.a and len(lm.calls) == asked
    assert [turn.output for turn in again.trajectory] == [turn.output for turn in prediction.trajectory]
    kinds = [event.kind for event in again.trajectory.events]
    assert kinds.count("compacted") == len(compacted(log)) > 0


def test_a_recorded_run_is_shown_as_much_as_it_was(sandbox: Environment) -> None:
    lm = ScriptedLM([code("print('y' * 50_000)"), code("SUBMIT(a='done')")])
    prediction, _ = run(lm, sandbox, context_window=4_000)
    again = replay(prediction.trajectory, RLM("q -> a", interpreter=sandbox))
    assert again.trajectory[0].shown == prediction.trajectory[0].shown and len(again.trajectory[0].shown) < 4_200


@pytest.mark.parametrize("since", [0, 1, 2, 3])
def test_the_task_that_goes_on_is_always_sent(since: int) -> None:
    turns = [Exchange("r", "o"), Exchange("r", "o", following="THE NEW TASK"), Exchange("r", "o")]
    conversation = Conversation("contract", turns, branch=Branch("note", since, 0, 3))
    sent = "\n".join(message["content"] for message in conversation.messages())
    assert sent.count("THE NEW TASK") == 1 and sent.startswith("contract")
