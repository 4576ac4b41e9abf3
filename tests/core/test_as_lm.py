"""`rlm.as_lm()`: an RLM in the place of a language model, under DSPy's own modules and adapters."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Callable
from typing import Any, Literal

import cloudpickle
import dspy
import pydantic
import pytest
from dspy.lm15 import ContextLengthError, Message, Request, Response
from dspy.streaming import StreamListener, StreamResponse
from dspy.utils.exceptions import ContextWindowExceededError, LMError

from rlm_dspy import RLM, ConfigurationError, ReplyFailed
from rlm_dspy.as_lm import RecursiveLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, Reply, ScriptedLM, code, oracle

pytestmark = pytest.mark.usefixtures("no_leaks")

LOG = "\n".join(f"{n} {'ERROR disk full' if n % 1_000 == 7 else 'INFO fine'}" for n in range(20_000))
ERRORS = LOG.count("ERROR")


def is_root(call: Call) -> bool:
    return "REPL" in call.system


def root(source: str | Callable[[Call], str], direct: str | Reply = "direct") -> Callable[[Call], Any]:
    """The root of every run replies with the code ``source``; any other request gets ``direct``."""

    def policy(call: Call) -> Any:
        if not is_root(call):
            return direct
        return code(source(call) if callable(source) else source)

    return policy


@pytest.fixture
def rlm(sandbox: Environment) -> RLM:
    # A scripted root answers at once; whether an answer was looked up is no matter here.
    return RLM("context -> answer", interpreter=sandbox, max_iters=4, guidance={"check_answers": False})


# ------------------------------------------------------------------------------------------------ under DSPy's modules


class Count(dspy.Signature):
    """Count the lines of the log that the question is about."""

    log: str = dspy.InputField()
    question: str = dspy.InputField()
    count: int = dspy.OutputField()


@pytest.mark.parametrize(
    "adapter", [None, dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter()], ids=["none", "chat", "json", "xml"]
)
def test_a_long_field_is_a_variable_and_the_form_of_the_reply_is_in_view(rlm: RLM, adapter: Any) -> None:
    lm = ScriptedLM(root("SUBMIT(count=log.count('ERROR') + 0 * len(question))"))
    with dspy.context(lm=rlm.as_lm(lm), adapter=adapter):
        prediction = dspy.Predict(Count)(log=LOG, question="How many lines say ERROR?")
    assert prediction.count == ERRORS
    (call,) = lm.calls
    (contract,) = [message["content"] for message in call.own]
    assert len(contract) < 12_000, "the log is not in the prompt"
    # Word for word as DSPy asked for it.
    asked = (adapter or dspy.ChatAdapter()).user_message_output_requirements(Count)
    assert asked in contract
    assert "Count the lines of the log" in contract and "How many lines say ERROR?" in contract
    assert f"{len(LOG):,} characters" in contract and "`log`" in contract


def test_ten_megabytes(rlm: RLM) -> None:
    log = "x" * 10_000_000 + " ERROR"
    lm = ScriptedLM(root("SUBMIT(count=len(log))"))
    with dspy.context(lm=rlm.as_lm(lm, guidance=True)):
        assert dspy.Predict(Count)(log=log, question="How long is it?").count == len(log)
    assert sum(len(message["content"]) for message in lm.calls[0].messages) < 20_000


def test_chain_of_thought(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(reasoning='I counted.', count=log.count('ERROR'))"))
    with dspy.context(lm=rlm.as_lm(lm)):
        prediction = dspy.ChainOfThought(Count)(log=LOG, question="How many?")
    assert (prediction.reasoning, prediction.count) == ("I counted.", ERRORS)


class Ticket(pydantic.BaseModel):
    number: int
    kind: Literal["disk", "net"]


class Triage(dspy.Signature):
    """Open a ticket for every error."""

    lines: list[str] = dspy.InputField()
    tickets: list[Ticket] = dspy.OutputField()
    severity: Literal["low", "high"] = dspy.OutputField()
    share: float = dspy.OutputField()
    note: int | None = dspy.OutputField()
    by_kind: dict[str, int] = dspy.OutputField()


TICKETS = """
bad = [line for line in lines if 'ERROR' in line]
SUBMIT(tickets=[{'number': int(line.split()[0]), 'kind': 'disk'} for line in bad], severity='high',
       share=len(bad) / len(lines), note=None, by_kind={'disk': len(bad)})
"""


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()], ids=["chat", "json"])
def test_typed_inputs_and_outputs(rlm: RLM, adapter: dspy.Adapter) -> None:
    lm = ScriptedLM(root(TICKETS))
    with dspy.context(lm=rlm.as_lm(lm), adapter=adapter):
        prediction = dspy.Predict(Triage)(lines=LOG.split("\n"))
    assert prediction.tickets[0] == Ticket(number=7, kind="disk") and len(prediction.tickets) == ERRORS
    assert (prediction.severity, prediction.note, prediction.by_kind) == ("high", None, {"disk": ERRORS})
    assert prediction.share == ERRORS / 20_000
    contract = lm.calls[0].own[0]["content"]
    assert "list, 20,000 items" in contract or "list[str], 20,000 items" in contract


def test_a_value_of_the_wrong_type_is_a_turn_and_not_a_reply(rlm: RLM) -> None:
    def act(call: Call) -> str:
        return "SUBMIT(count='many')" if call.turn == 0 else "SUBMIT(count=3)"

    lm = ScriptedLM(root(act))
    with dspy.context(lm=rlm.as_lm(lm)):
        assert dspy.Predict(Count)(log=LOG, question="?").count == 3
    assert len(lm.calls) == 2


def test_react(rlm: RLM) -> None:
    def look_up(host: str) -> str:
        """Who owns a host."""
        return f"{host} is owned by Ada"

    def act(call: Call) -> str:
        contract = call.own[0]["content"]
        if "reasoning: str" in contract:
            return "SUBMIT(reasoning='seen', owner='Ada' if 'owned by Ada' in trajectory else 'unknown')"
        if "owned by Ada" in contract:
            return "SUBMIT(next_thought='done', next_tool_name='finish', next_tool_args={})"
        return "SUBMIT(next_thought='who?', next_tool_name='look_up', next_tool_args={'host': log.split()[-1]})"

    lm = ScriptedLM(root(act))
    with dspy.context(lm=rlm.as_lm(lm)):
        prediction = dspy.ReAct("log, question -> owner", tools=[look_up])(log=LOG + " alpha", question="Whose is it?")
    assert prediction.owner == "Ada"
    assert prediction.trajectory["observation_0"] == "alpha is owned by Ada"
    assert len(lm.calls) == 3


def test_awaited_and_side_by_side(rlm: RLM) -> None:
    lm = ScriptedLM(root(lambda call: "SUBMIT(count=int(question))"))

    async def main() -> list[int]:
        predict = dspy.Predict(Count)
        found = await asyncio.gather(*(predict.acall(log=LOG, question=str(n)) for n in range(4)))
        return [prediction.count for prediction in found]

    with dspy.context(lm=rlm.as_lm(lm)):
        assert asyncio.run(main()) == [0, 1, 2, 3]


def test_streamed_the_answer_and_nothing_of_the_run(rlm: RLM) -> None:
    lm = ScriptedLM(root("secret_step = 1\nSUBMIT(answer='the streamed answer')"))
    program = dspy.Predict("log, question -> answer")

    async def main(**options: Any) -> list[Any]:
        streamed = dspy.streamify(program, **options)
        return [item async for item in streamed(log=LOG, question="?")]

    with dspy.context(lm=rlm.as_lm(lm)):
        raw = asyncio.run(main())
        heard = asyncio.run(main(stream_listeners=[StreamListener(signature_field_name="answer")]))
    assert raw[-1].answer == heard[-1].answer == "the streamed answer"
    assert "secret_step" not in repr(raw[:-1]) + repr(heard[:-1])
    assert "".join(item.chunk for item in heard if isinstance(item, StreamResponse)).strip() == "the streamed answer"


def test_a_plain_text_request_keeps_beginning_and_end_in_view(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(response=str(message.count('ERROR')))"))
    outer = rlm.as_lm(lm)
    assert outer(f"Count the errors in this log.\n\n{LOG}\n\nReply with the number alone.") == [str(ERRORS)]
    contract = lm.calls[0].own[0]["content"]
    assert "Count the errors in this log." in contract and "Reply with the number alone." in contract
    assert "10007 ERROR" not in contract.partition("===== end of the conversation")[0]


def test_only_what_the_program_did_is_in_its_trace(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(answer='x')"))
    program = dspy.Predict("log -> answer")
    with dspy.context(lm=rlm.as_lm(lm), trace=[]):
        program(log=LOG)
        assert [predictor for predictor, _, _ in dspy.settings.trace] == [program]


def test_an_optimizer_bootstraps_a_program_on_it(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(answer='blue')"))
    with dspy.context(lm=rlm.as_lm(lm)):
        optimizer = dspy.BootstrapFewShot(metric=lambda *_: True, max_bootstrapped_demos=1)
        example = dspy.Example(log=LOG, answer="blue").with_inputs("log")
        compiled = optimizer.compile(dspy.Predict("log -> answer"), trainset=[example])
        assert compiled.demos[0]["answer"] == "blue"
        compiled(log=LOG)
    assert len(lm.calls[-1].own[0]["content"]) < 15_000, "the demonstration's log is a variable too"


# ------------------------------------------------------------------------------------------------------------- the LMs


def test_the_lm_behind_is_frozen_so_that_it_cannot_ask_itself(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(answer='once')"))
    with dspy.context(lm=lm):
        outer = rlm.as_lm()
    with dspy.context(lm=outer):
        assert dspy.Predict("log -> answer")(log=LOG).answer == "once"
        again = rlm.as_lm()
        assert again.backend.lm is lm, "not one round the other"
        rlm.set_lm(outer)
        assert dspy.Predict("log -> answer")(log=LOG).answer == "once"
        assert rlm.as_lm().backend.lm is lm
    assert len(lm.calls) == 2


def test_sub_agents_and_tools_do_not_ask_it_either(rlm: RLM) -> None:
    seen: list[Any] = []

    def which() -> str:
        """The LM in force."""
        seen.append(dspy.settings.lm)
        return "x"

    lm = ScriptedLM(root("SUBMIT(answer=which())"))
    with dspy.context(lm=rlm.as_lm(lm, tools=[which])):
        dspy.Predict("log -> answer")(log=LOG)
    assert seen == [lm]


def test_which_lm_stands_behind(rlm: RLM) -> None:
    given, own, configured = (ScriptedLM(root("SUBMIT(answer='x')"), model=f"scripted/{n}") for n in "abc")
    with dspy.context(lm=None), pytest.raises(ConfigurationError, match=r"rlm.as_lm\(lm=dspy.LM"):
        rlm.as_lm()
    with dspy.context(lm=configured):
        assert rlm.as_lm().backend.lm is configured
        rlm.act.lm = own
        assert rlm.as_lm().backend.lm is own
        outer = rlm.as_lm(given)
    assert outer.backend.lm is given and outer.model == "rlm/scripted/a"
    assert rlm.act.lm is own, "the program itself stays as it is"
    with dspy.context(lm=outer):
        dspy.Predict("log -> answer")(log=LOG)
    assert (len(given.calls), len(own.calls), len(configured.calls)) == (1, 0, 0)
    with pytest.raises(TypeError, match="lm must be an LM such as"):
        rlm.as_lm("openai/m")  # type: ignore[arg-type]


def test_sub_calls_go_to_the_sub_lm(rlm: RLM) -> None:
    lm, sub = ScriptedLM(root("SUBMIT(answer=llm_query('hm?'))")), ScriptedLM(lambda call: "from sub")
    with dspy.context(lm=rlm.as_lm(lm, sub)):
        assert dspy.Predict("log -> answer")(log=LOG).answer == "from sub"
    with dspy.context(lm=rlm.as_lm(lm)):
        assert dspy.Predict("log -> answer")(log=LOG).answer == "direct"


def test_limits_and_options_are_the_programs(rlm: RLM) -> None:
    lm = ScriptedLM(oracle("1", answer={"answer": "as far as it got"}))
    with dspy.context(lm=rlm.as_lm(lm, max_iters=1)):
        assert dspy.Predict("log -> answer")(log=LOG).answer == "as far as it got"
    assert len(lm.calls) == 2
    with pytest.raises(ConfigurationError, match="unknown options"):
        rlm.as_lm(lm, max_turns=3)


# ------------------------------------------------------------------------------------------------- what goes straight


def test_a_short_request_is_one_call_as_it_is(rlm: RLM) -> None:
    lm = ScriptedLM(["[[ ## answer ## ]]\nblue\n\n[[ ## completed ## ]]"] * 2, temperature=0.3, max_tokens=99)
    with dspy.context(lm=rlm.as_lm(lm)):
        assert dspy.Predict("question -> answer")(question="Which colour?").answer == "blue"
    with dspy.context(lm=lm):
        dspy.Predict("question -> answer")(question="Which colour?")
    through, plain = lm.calls
    assert through.messages == plain.messages
    assert through.request.config == plain.request.config
    assert (through.request.config.temperature, through.request.config.max_tokens) == (0.3, 99)


@pytest.mark.parametrize("engine", ["lm15", "litellm"])
def test_an_endpoint_gets_what_it_would_get_without_it(rlm: RLM, endpoint: Callable[..., Any], engine: str) -> None:
    server = endpoint(["[[ ## answer ## ]]\nblue\n\n[[ ## completed ## ]]"] * 2)
    lm = dspy.LM(
        "openai/m", api_base=server.url, api_key="k", temperature=0.3, max_tokens=99, engine=engine, cache=False
    )
    for used in (lm, rlm.as_lm(lm)):
        with dspy.context(lm=used):
            assert dspy.Predict("question -> answer")(question="Which colour?").answer == "blue"
    lm.close()
    plain, through = map(json.loads, server.bodies)
    if engine == "litellm":
        # So DSPy 3.4 writes an explicit Request for LiteLLM; the newer name of the same setting.
        through["max_tokens"] = through.pop("max_completion_tokens")
        assert through.pop("n") == 1
    assert through == plain


def test_a_run_over_a_real_endpoint(rlm: RLM, endpoint: Callable[..., Any]) -> None:
    server = endpoint([code("SUBMIT(count=log.count('ERROR'))")])
    lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False)
    with dspy.context(lm=rlm.as_lm(lm)), dspy.track_usage() as tracker:
        assert dspy.Predict(Count)(log=LOG, question="How many?").count == ERRORS
    lm.close()
    assert len(server.bodies[0]) < 20_000
    assert tracker.get_total_tokens()["openai/m"]["total_tokens"] == 18 and len(tracker.get_total_tokens()) == 1


def test_settings_of_a_call_go_before_those_of_the_lm(rlm: RLM) -> None:
    lm = ScriptedLM(lambda call: "x", temperature=0.3, max_tokens=99)
    rlm.as_lm(lm)("short", temperature=0.9, stop=["END"])
    config = lm.calls[0].request.config
    assert (config.temperature, config.max_tokens, config.stop) == (0.9, 99, ("END",))


def test_the_root_takes_the_temperature_and_not_the_length_of_the_reply(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(response='one END two')"), temperature=0.3, max_tokens=4_000)
    assert rlm.as_lm(lm)(LOG, temperature=0.9, max_tokens=10, stop=["END"]) == ["one "]
    config = lm.calls[0].request.config
    assert (config.temperature, config.max_tokens, config.stop) == (0.9, 4_000, ())
    assert lm.kwargs["temperature"] == 0.3


def test_what_is_too_long_for_the_lm_after_all_is_run(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(answer='run')", Reply(error=ContextLengthError("2049 tokens, 2048 fit"))))
    with dspy.context(lm=rlm.as_lm(lm)):
        assert dspy.Predict("log -> answer")(log=LOG[:10_000]).answer == "run"
    assert [is_root(call) for call in lm.calls] == [False, True]


@pytest.mark.parametrize(("below", "straight"), [(None, False), (10, False), (100_000_000, True), ("program", False)])
def test_where_the_router_is_set(rlm: RLM, below: Any, straight: bool) -> None:
    lm = ScriptedLM(root("SUBMIT(response='run')"))
    assert rlm.as_lm(lm, direct_below=below)(LOG) == ["direct" if straight else "run"]


def test_the_programs_own_router_is_the_default(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(response='run')"))
    assert rlm.with_options(direct_below=100_000_000).as_lm(lm)(LOG) == ["direct"]
    assert rlm.with_options(direct_below=1).as_lm(lm)("a short one") == ["run"]
    with pytest.raises(ConfigurationError, match="direct_below"):
        rlm.as_lm(lm, direct_below=0)


TOOL = {"type": "function", "function": {"name": "f", "description": "F", "parameters": {"type": "object"}}}


def test_a_request_with_tools_or_images_goes_to_the_lm_alone(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(response='run')"))
    outer = rlm.as_lm(lm)
    assert outer(LOG, tools=[TOOL]) == ["direct"]
    assert [tool.name for tool in lm.calls[0].request.tools] == ["f"]
    image = dspy.Image("data:image/png;base64,iVBORw0KGgo=")
    reply = "[[ ## answer ## ]]\nseen\n\n[[ ## completed ## ]]"
    with dspy.context(lm=rlm.as_lm(ScriptedLM([reply]))):
        assert dspy.Predict("log, picture: dspy.Image -> answer")(log=LOG, picture=image).answer == "seen"


def test_what_the_lm_alone_can_answer_and_cannot_hold_says_so(rlm: RLM) -> None:
    lm = ScriptedLM(lambda call: Reply(error=ContextLengthError("too long")))
    with pytest.raises(ContextWindowExceededError) as caught:
        rlm.as_lm(lm)(LOG, tools=[TOOL])
    assert "An RLM cannot take this request over: a request with tools" in caught.value.__notes__[0]


def test_an_lm_that_can_only_be_called_or_only_be_awaited(rlm: RLM) -> None:
    class Awaited(ScriptedLM):
        async def acall(self, *args: Any, **kwargs: Any) -> Any:
            return await super().acall(*args, **kwargs)

    called, awaited = ScriptedLM(lambda call: "x", sync_only=True), Awaited(lambda call: "x")
    assert asyncio.run(rlm.as_lm(called).acall("short")) == ["x"]
    assert rlm.as_lm(awaited)("short") == ["x"]


# ------------------------------------------------------------------------------- several candidates, caches and usage


def test_candidates_are_runs_of_their_own(rlm: RLM) -> None:
    lm = ScriptedLM(root(lambda call: f"SUBMIT(response='{call.number}')"), temperature=1.0, cache=True)
    assert rlm.as_lm(lm)(f"{LOG} candidates", n=3) == ["0", "1", "2"]
    prediction_lm = rlm.as_lm(ScriptedLM(root(lambda call: f"SUBMIT(answer='{call.number}')"), temperature=1.0))
    with dspy.context(lm=prediction_lm):
        found = dspy.Predict("log -> answer", n=2)(log=LOG)
    assert list(found.completions.answer) == ["0", "1"]


def test_an_equal_request_is_answered_from_the_caches_behind(rlm: RLM) -> None:
    lm = ScriptedLM(root(lambda call: f"SUBMIT(response='{call.number}')"), temperature=1.0, cache=True)
    outer = rlm.as_lm(lm)
    text = f"{LOG} cached"
    assert outer(text) == outer(text) == ["0"] and len(lm.calls) == 1
    assert outer(text, rollout_id=7) == ["1"], "another rollout is another reply"
    assert outer.copy(rollout_id=7)(text) == ["1"]
    assert outer(text, cache=False) == ["2"]
    assert outer("short and cached") == outer("short and cached") and len(lm.calls) == 4


def test_two_programs_never_answer_for_one_another(rlm: RLM) -> None:
    lm = ScriptedLM(root(lambda call: "SUBMIT(response=which())"))

    def one() -> str:
        """One."""
        return "one"

    def two() -> str:
        """Two."""
        return "two"

    tools = [[dspy.Tool(one, name="which")], [dspy.Tool(two, name="which")]]
    assert [rlm.as_lm(lm, tools=given)(LOG) for given in tools] == [["one"], ["two"]]


@pytest.mark.parametrize("long", [True, False])
def test_usage_is_counted_once(rlm: RLM, long: bool) -> None:
    lm = ScriptedLM(root("SUBMIT(response=llm_query('hm?'))"), model="scripted/inner")
    outer = rlm.as_lm(lm)
    with dspy.track_usage() as tracker:
        outer(LOG if long else "short")
    used = tracker.get_total_tokens()
    assert list(used) == ["scripted/inner"], "reported where it arises and nowhere else"
    total = {name: used["scripted/inner"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert total["prompt_tokens"] == sum(sum(len(m["content"]) for m in call.messages) // 4 for call in lm.calls)
    assert outer.history[-1]["usage"] == total
    assert [run.outcome for run in outer.history[-1]["runs"]] == (["submitted"] if long else [])
    with dspy.track_usage() as tracker:
        response = outer(Request(model=outer.model, messages=(Message.user(LOG if long else "short"),)))
    assert isinstance(response, Response) and response.model == outer.model
    again = tracker.get_total_tokens()["scripted/inner"]
    assert (response.usage.input_tokens, response.usage.total_tokens) == (again["prompt_tokens"], again["total_tokens"])


def test_a_program_that_tracks_usage_sees_it_once(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(answer='x')"), model="scripted/inner")
    with dspy.context(lm=rlm.as_lm(lm), track_usage=True):
        prediction = dspy.Predict("log -> answer")(log=LOG)
    assert list(prediction.get_lm_usage()) == ["scripted/inner"]


def test_as_the_sub_lm_of_another_rlm_it_counts_once(rlm: RLM, sandbox: Environment) -> None:
    inner = ScriptedLM(root("SUBMIT(response='from below')"), model="scripted/inner")
    above = ScriptedLM(root("SUBMIT(answer=llm_query(context))"), model="scripted/above")
    program = RLM("context -> answer", interpreter=sandbox, sub_lm=rlm.as_lm(inner))
    with dspy.context(lm=above):
        prediction = program(context=LOG)
    assert prediction.answer == "from below"
    assert set(prediction.usage["by_model"]) == {"scripted/inner", "scripted/above"}
    tokens = sum(sum(len(m["content"]) for m in call.messages) // 4 for call in (*inner.calls, *above.calls))
    assert prediction.usage["input_tokens"] == tokens


# ---------------------------------------------------------------------------------------------------------- its ends


def test_a_run_without_an_answer_is_an_error_of_the_lm(rlm: RLM) -> None:
    lm = ScriptedLM(lambda call: Reply(error=ZeroDivisionError("broken")) if call.turn else code("print(1)"))
    with dspy.context(lm=rlm.as_lm(lm, max_iters=1)), pytest.raises(ReplyFailed) as caught:
        dspy.Predict("log -> answer")(log=LOG)
    assert isinstance(caught.value, LMError) and "broken" in str(caught.value)
    assert caught.value.limit == "max_iters" and len(caught.value.trajectory) == 1
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, ReplyFailed) and str(again) == str(caught.value) and again.limit == "max_iters"


def test_on_limit_decides_about_the_best_answer_so_far(rlm: RLM) -> None:
    lm = ScriptedLM(oracle("1", answer={"answer": "so far"}))
    with dspy.context(lm=rlm.as_lm(lm, max_iters=1, on_limit="raise")), pytest.raises(ReplyFailed) as caught:
        dspy.Predict("log -> answer")(log=LOG)
    assert caught.value.prediction.answer == "so far" and caught.value.limit == "max_iters"


def test_an_error_of_the_lm_behind_is_that_error(rlm: RLM) -> None:
    lm = ScriptedLM(lambda call: Reply(error=dspy.lm15.AuthError("wrong key")))
    for prompt in (LOG, "short"):
        with pytest.raises(dspy.utils.exceptions.LMAuthError, match="wrong key"):
            rlm.as_lm(lm)(prompt)


def test_a_sandbox_that_does_not_start_is_an_error_of_the_lm() -> None:
    from rlm_dspy import SandboxUnavailableError

    def broken() -> Any:
        raise SandboxUnavailableError("no bubblewrap here")

    outer = RLM("context -> answer", interpreter=broken).as_lm(ScriptedLM(lambda call: "x"))
    with pytest.raises(ReplyFailed, match="no bubblewrap here"):
        outer(LOG)


# --------------------------------------------------------------------------------------------------- copies and state


def test_what_changes_later_changes_nothing(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(response='x')"))
    outer = rlm.as_lm(lm)
    rlm.act.signature = rlm.act.signature.with_instructions("LATER")
    rlm.max_iters = 1
    outer(LOG)
    assert "LATER" not in lm.calls[0].system and "4 turns" in lm.calls[0].own[0]["content"]


def test_copies_go_on_with_the_same_backend(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(answer='x')"))
    outer = rlm.as_lm(lm)
    program = dspy.Predict("log -> answer")
    program.set_lm(outer)
    for copied in (copy.deepcopy(outer), outer.copy(temperature=0.5), program.deepcopy().lm):
        assert isinstance(copied, RecursiveLM) and copied.backend is outer.backend
        assert copied.history is not outer.history
    assert program.deepcopy()(log=LOG).answer == "x"


def test_pickled_it_is_whole(rlm: RLM) -> None:
    outer = rlm.as_lm(dspy.LM("openai/m", api_key="sk-1", temperature=0.5))
    for module in (pickle, cloudpickle):
        again = module.loads(module.dumps(outer))
        assert again.model == "rlm/openai/m" and again.backend.lm.kwargs["temperature"] == 0.5
        assert again.backend.program.max_iters == 4 and again.engine.backend is again.backend


def test_state_has_no_key_and_makes_the_lm_again() -> None:
    sub_lm = dspy.LM("openai/sub", api_key="sk-sub")
    rlm = RLM("context -> answer", max_iters=3, sub_lm=sub_lm, on_limit="raise", guidance={"first_look": False})
    rlm.act.signature = rlm.act.signature.with_instructions("Learned.")
    headers = {"Authorization": "Bearer sk-header"}
    program = dspy.Predict("log -> answer")
    lm = dspy.LM("openai/m", api_key="sk-1", extra_headers=headers, temperature=0.5)
    program.set_lm(rlm.as_lm(lm, direct_below=9))
    text = json.dumps(program.dump_state())
    assert "sk-" not in text and "Authorization" not in text
    again = dspy.Predict("log -> answer")
    with pytest.raises(ValueError, match="allow_unsafe_lm_state"):
        again.load_state(json.loads(text))
    again.load_state(json.loads(text), allow_unsafe_lm_state=True)
    lm = again.lm
    assert isinstance(lm, RecursiveLM) and lm.model == "rlm/openai/m"
    assert lm.backend.lm.kwargs["temperature"] == 0.5 and lm.backend.direct_below == 9
    made = lm.backend.program
    assert made.max_iters == 3 and made.sub_lm is not None and made.sub_lm.model == "openai/sub"
    assert made.on_limit == "raise" and made.guidance == rlm.guidance
    assert made.act.signature.instructions == "Learned."


def test_state_of_what_cannot_be_saved_says_what_is_lost(rlm: RLM) -> None:
    def look_up(key: str) -> str:
        """Find."""
        return key

    program = dspy.Predict("log -> answer")
    program.set_lm(rlm.as_lm(ScriptedLM([]), tools=[look_up]))
    state = json.loads(json.dumps(program.dump_state()))
    with pytest.raises(ConfigurationError, match="the tool look_up, an environment of its own"):
        dspy.Predict("log -> answer").load_state(state, allow_unsafe_lm_state=True)


def test_state_of_another_sub_call_is_lost_too() -> None:
    rlm = RLM("context -> answer")
    rlm.sub = dspy.ChainOfThought("prompt -> response")
    state = rlm.as_lm(ScriptedLM([])).dump_state()
    assert state["lost"] == ["sub_signature="]


def test_many_at_once_on_one_event_loop_which_never_stands_still(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(count=len(log))"))
    log = "é" * 5_000_000

    async def main() -> tuple[list[int], float]:
        gaps, ended = [0.0], asyncio.Event()

        async def tick() -> None:
            while not ended.is_set():
                started = asyncio.get_running_loop().time()
                await asyncio.sleep(0.005)
                gaps.append(asyncio.get_running_loop().time() - started)

        ticking = asyncio.create_task(tick())
        request = dspy.ChatAdapter().format(Count, [], {"log": log, "question": "?"})
        outer = rlm.as_lm(lm)
        system, last = request[0]["content"], request[1]["content"]
        asked = Request(model=outer.model, system=system, messages=(Message.user(last),))
        replies = await asyncio.gather(*(outer.acall(asked) for _ in range(4)))
        ended.set()
        await ticking
        return [int(reply.message.text.split()[5]) for reply in replies], max(gaps)

    counts, gap = asyncio.run(main())
    assert counts == [len(log)] * 4
    assert gap < 1.0


PRICES: dict[str, Any] = {"prices": {"scripted/inner": (1.0, 2.0), "scripted/above": (1.0, 2.0)}, "max_cost": 1.0}


def test_money_is_counted_by_the_prices_of_the_lms_behind(rlm: RLM, sandbox: Environment) -> None:
    inner = ScriptedLM(root("SUBMIT(response='from below')"), model="scripted/inner")
    above = ScriptedLM(root("SUBMIT(answer=llm_query(context))"), model="scripted/above")
    outer = rlm.as_lm(inner)
    program = RLM("context -> answer", interpreter=sandbox, sub_lm=outer, guidance=False, **PRICES)
    with dspy.context(lm=above):
        prediction = program(context=LOG)
    assert prediction.usage["cost"] > 0 and prediction.usage["by_role"]["act"]["cost"] > 0
    with pytest.raises(ConfigurationError, match="the price of scripted/inner is unknown"):
        RLM("context -> answer", sub_lm=outer, max_cost=1.0)
    with pytest.raises(ConfigurationError, match="the price of scripted/inner is unknown"):
        rlm.as_lm(inner, max_cost=1.0)


def test_money_and_tokens_limit_a_reply(rlm: RLM) -> None:
    lm = ScriptedLM(root("print(1)"), model="scripted/inner")
    with pytest.raises(ReplyFailed) as caught:
        rlm.as_lm(lm, max_tokens=3_000, max_iters=50)(LOG)
    assert caught.value.limit == "max_tokens"
    assert caught.value.prediction.usage["input_tokens"] < 6_000


def test_a_reply_may_take_children_and_typed_sub_calls(sandbox: Environment) -> None:
    calls = {"classify": "line -> kind"}
    options: dict[str, Any] = {"interpreter": sandbox, "guidance": {"check_answers": False}, "max_depth": 2}

    def policy(call: Call) -> str:
        if not is_root(call):
            return "disk"
        if "conversation between a user" not in call.own[0]["content"]:
            return code("SUBMIT(response=str(len(part)))")
        return code("SUBMIT(answer=classify(line=log[:50]) + rlm_query('how long?', part=log))")

    lm = ScriptedLM(policy)
    with dspy.context(lm=RLM("context -> answer", sub_calls=calls, **options).as_lm(lm)):
        assert dspy.Predict("log, classify -> answer")(log=LOG, classify="a name of code's").answer == f"disk{len(LOG)}"


def test_a_small_window_that_is_known_is_not_filled(rlm: RLM) -> None:
    lm = ScriptedLM(root("SUBMIT(response='run')"))
    lm.context_window = 1_000  # type: ignore[attr-defined]
    assert rlm.as_lm(lm).backend.direct_below == 500
    assert rlm.as_lm(lm, direct_below=700).backend.direct_below == 700
