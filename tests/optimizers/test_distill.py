"""Training rows: what was sent and replied, byte for byte, marked by what is to be learned, in trainers' forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.clients.provider import Provider, TrainingJob
from dspy.clients.utils_finetune import TrainDataFormat, validate_data_format
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import RLM, ConfigurationError, Guidance
from rlm_dspy.environments.base import Environment
from rlm_dspy.optimizers import TrajectoryFinetune, collect, sft_rows, write_rows
from rlm_dspy.optimizers.attempts import Attempt
from rlm_dspy.rows import FORMS, Request, chains, formed, marked
from rlm_dspy.testing import Call, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")


def root(call: Call) -> str:
    """A turn that fails, a sub-call and a child, an answer."""
    if "SUBMIT(response" in call.own[0]["content"]:
        return code("SUBMIT(response='of the child')", "Child.")
    steps = [
        code("1 / 0", "A slip."),
        code("print(llm_query('one'), llm_query_batched(['one', 'two']), rlm_query('go', text='t'))", "Ask."),
        code("SUBMIT(answer='right' if 'good' in query else 'wrong')", "Done."),
    ]
    return steps[call.turn]


def program(sandbox: Environment, **options: Any) -> tuple[RLM, ScriptedLM, ScriptedLM]:
    """A program with its two language models."""
    lm, sub_lm = ScriptedLM(root), ScriptedLM(lambda call: f"reply to {call.prompt}", model="scripted/sub")
    return RLM("query -> answer", sub_lm=sub_lm, interpreter=sandbox, max_depth=2, **options), lm, sub_lm


def attempts(sandbox: Environment, *queries: str, **options: Any) -> tuple[list[Attempt], ScriptedLM]:
    """Attempts at these questions, and the root's LM."""
    rlm, lm, _ = program(sandbox, **options)
    examples = [dspy.Example(query=query, answer="right").with_inputs("query") for query in queries]
    with dspy.context(lm=lm):
        return collect(rlm, examples, lambda e, p, t=None: p.answer == e.answer), lm


def plain(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def test_a_run_is_one_row_byte_for_byte_and_only_its_good_replies_are_learned(sandbox: Environment) -> None:
    made, lm = attempts(sandbox, "good?", "bad?")
    rows = sft_rows(made)
    assert [(row["role"], row["depth"], row["turns"]) for row in rows] == [
        ("sub", 0, 1),
        ("sub", 0, 1),
        ("act", 0, 2),
        ("act", 1, 1),
    ]
    parent = rows[2]
    last = [call for call in lm.calls if "good?" in call.own[0]["content"] and call.turn == 2][-1]
    assert plain(parent["messages"]) == [*last.messages, {"role": "assistant", "content": root(last)}]
    weights = [message["weight"] for message in parent["messages"] if message["role"] == "assistant"]
    # The demonstration and the turn that failed are in it, and not learned.
    assert weights[-3:] == [0, 1, 1] and not any(weights[:-2]) and len(weights) > 3
    assert plain(rows[0]["messages"])[1:] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "reply to one"},
    ]
    assert (parent["score"], parent["outcome"], parent["cost"]) == (1.0, "submitted", None)


def test_rows_are_chosen_by_role_score_cost_turns_and_length(sandbox: Environment) -> None:
    made, _ = attempts(sandbox, "good?", "bad?", "good?", prices={"scripted/lm": (1, 1), "scripted/sub": (1, 1)})
    everything = sft_rows(made, min_score=0.0)
    assert [row["role"] for row in everything].count("act") == 3  # two roots; all else is the same
    assert {row["role"] for row in sft_rows(made, roles=["sub"])} == {"sub"}
    assert [row["depth"] for row in sft_rows(made, roles=["act"], children=False)] == [0]
    assert sft_rows(made, max_turns=2) == []
    cost = made[0].cost
    assert cost is not None and sft_rows(made, max_cost=cost / 2) == [] and sft_rows(made, max_cost=cost) != []
    assert [row["role"] for row in sft_rows(made, max_chars=1_000)] == ["sub", "sub"]
    assert sft_rows(made, outcomes=["extracted"]) == []
    with pytest.raises(ConfigurationError, match=r"no predictor is named root; there are: act, "):
        sft_rows(made, roles=["root"])
    learned = sft_rows(made, roles=["act"], children=False, failed_turns=True)
    assert learned[0]["turns"] == 3


def test_without_demonstrations_a_row_is_what_a_program_without_them_is_sent(sandbox: Environment) -> None:
    """So what is fine-tuned on it meets the same prompts again."""
    made, _ = attempts(sandbox, "good?")
    (row,) = sft_rows(made, roles=["act"], children=False, failed_turns=True)
    (line,) = formed(row, "roles", bare=True)
    rlm, lm, _ = program(sandbox, guidance=Guidance(demonstration=False))
    with dspy.context(lm=lm):
        rlm(query="good?")
    last = [call for call in lm.calls if call.turn == 2][-1]
    assert line == {"messages": [*last.messages, {"role": "assistant", "content": root(last)}]}
    assert set(line) == {"messages"}


def test_forms_of_rows(sandbox: Environment, tmp_path: Path) -> None:
    made, _ = attempts(sandbox, "good?")
    rows = sft_rows(made)
    (row,) = [row for row in rows if row["role"] == "act" and row["depth"] == 0]
    (marks,) = formed(row, "train", bare=True)
    trained = [message["train"] for message in marks["messages"]]
    assert trained[-3:] == [True, False, True] and sum(trained) == 2
    (line,) = formed(row, "completion")
    assert [m["role"] for m in line["completion"]] == ["assistant", "user", "assistant"] and line["role"] == "act"
    assert plain(line["prompt"]) + plain(line["completion"]) == plain(row["messages"])
    # A turn in the middle that is not to be learned cannot be told to a trainer that only knows roles.
    assert formed(row, "roles") == []
    for form, lines in (("weight", 4), ("train", 4), ("completion", 4), ("turns", 5), ("roles", 3)):
        path = tmp_path / f"{form}.jsonl"
        assert write_rows(path, rows, form=form) == lines == len(path.read_text().splitlines())  # type: ignore[arg-type]
    read = [json.loads(text) for text in (tmp_path / "weight.jsonl").read_text().splitlines()]
    assert read == rows
    with pytest.raises(ConfigurationError, match="is there already"):
        write_rows(tmp_path / "roles.jsonl", [])
    with pytest.raises(ConfigurationError, match="no form of rows 'chatml'"):
        write_rows(tmp_path / "x.jsonl", rows, form="chatml")  # type: ignore[arg-type]


_TURN = st.tuples(st.text("ab", max_size=3), st.text("cd", max_size=3), st.booleans())


@given(runs=st.lists(st.lists(_TURN, min_size=1, max_size=4), min_size=1, max_size=3))
def test_every_reply_is_trained_on_once_and_nothing_else(runs: list[list[tuple[str, str, bool]]]) -> None:
    """Whatever the replies are, empty and equal ones too, in every form that can tell it."""
    requests = []
    for number, turns in enumerate(runs):
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": f"task {number}"}]
        for reply, output, trained in turns:
            requests.append(Request(list(messages), reply, trained=trained))
            messages += [
                {"role": "assistant", "content": reply or "(empty reply)"},
                {"role": "user", "content": output},
            ]
    found = chains(requests)
    assert len(found) == len(runs)
    wanted = [reply for turns in runs for reply, _, trained in turns if trained and reply.strip()]
    rows = [{"messages": marked(chain), "start": chain.start} for chain in found]
    assert [m["content"] for row in rows for m in row["messages"] if m.get("weight")] == wanted
    assert [m["content"] for r in rows for (x,) in [formed(r, "train")] for m in x["messages"] if m["train"]] == wanted
    learned = [m["content"] for r in rows for x in formed(r, "completion") for m in x["completion"]]
    assert [text for text in learned if text in wanted][: len(wanted)] == [text for text in learned if text in wanted]
    spoken = [m for r in rows for x in formed(r, "completion") for m in x["completion"] if m["role"] == "assistant"]
    assert [m["content"] for m in spoken] == wanted
    for row in rows:
        for line in formed(row, "roles"):
            assert all(m.get("weight") == 1 for m in row["messages"] if m["role"] == "assistant")
            assert set(line) == {"messages", "start"}
    single = [x["completion"] for r in rows for x in formed(r, "turns")]
    assert [m["content"] for (m,) in single] == wanted
    assert set(FORMS) == {"weight", "train", "completion", "turns", "roles"}


class Trainer(Provider):
    """A provider whose training gives an LM that plays the teacher, if the rows are what DSPy's providers take."""

    def __init__(self) -> None:
        super().__init__()
        self.finetunable = True
        self.TrainingJob = TrainingJob
        self.jobs: list[tuple[str, list[dict[str, Any]]]] = []

    @staticmethod
    def finetune(  # type: ignore[override]
        job: TrainingJob, model: str, train_data: list[dict[str, Any]], train_data_format: Any, train_kwargs: Any = None
    ) -> str:
        validate_data_format(train_data, train_data_format)
        assert train_data_format == TrainDataFormat.CHAT
        RECEIVED.append((model, train_data))
        return f"{model}-tuned"


RECEIVED: list[tuple[str, list[dict[str, Any]]]] = []


@pytest.mark.parametrize("multitask", [True, False])
def test_fine_tuning_takes_the_rows_and_puts_the_trained_models_in(sandbox: Environment, multitask: bool) -> None:
    RECEIVED.clear()

    def teach(call: Call) -> str:
        return code("SUBMIT(answer=llm_query('one'))" if call.turn else "print(1)")

    rlm = RLM("query -> answer", interpreter=sandbox)
    rlm.act.demos = [dspy.Example(task="t", turns=[], reasoning="", code="SUBMIT('x')")]
    weak, small = (ScriptedLM([], model=f"scripted/{name}", provider=Trainer()) for name in ("weak", "small"))
    for _, predictor in rlm.named_predictors():
        predictor.lm = weak
    rlm.sub.lm = small
    examples = [dspy.Example(query=query, answer="one!").with_inputs("query") for query in ("a?", "b?")]
    optimizer = TrajectoryFinetune(
        lambda e, p, t=None: p.answer == e.answer,
        multitask=multitask,
        num_threads=4,
        teacher_lm=ScriptedLM(teach),
        teacher_sub_lm=ScriptedLM(lambda call: "one!"),
    )
    tuned = optimizer.compile(rlm, trainset=examples)
    data = dict(RECEIVED)
    assert set(data) == {"scripted/weak", "scripted/small"}
    assert [row["messages"][1:] for row in data["scripted/small"]] == [
        [{"role": "user", "content": "one"}, {"role": "assistant", "content": "one!"}]
    ]
    act = data["scripted/weak"]
    assert len(act) == 2 and [m["role"] for m in act[0]["messages"]] == [
        "system",
        "user",
        *["assistant", "user"],
        "assistant",
    ]
    assert "A new task" not in act[0]["messages"][1]["content"]
    assert tuned.act.lm.model == "scripted/weak-tuned" and tuned.sub.lm.model == "scripted/small-tuned"
    assert tuned.act.demos == [] and not tuned.guidance.demonstration and rlm.guidance.demonstration
    assert rlm.act.lm is weak and optimizer.rows["scripted/small", "sub"] == 1
    # Predictors without a row keep theirs where each is trained by itself.
    assert (tuned.compact.lm is weak) is not multitask


def test_fine_tuning_without_a_model_or_a_row_says_so(sandbox: Environment) -> None:
    rlm = RLM("query -> answer", interpreter=sandbox)
    examples = [dspy.Example(query="a?", answer="x").with_inputs("query")]
    with pytest.raises(ConfigurationError, match="set_lm"):
        TrajectoryFinetune().compile(rlm, trainset=examples)
    rlm.set_lm(ScriptedLM(lambda call: code("SUBMIT('y')"), provider=Trainer()))
    with pytest.raises(ConfigurationError, match="of 1 attempts 0 had a score above 0"):
        TrajectoryFinetune(lambda e, p, t=None: p.answer == e.answer).compile(rlm, trainset=examples)
