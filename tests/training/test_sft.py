"""Real updates on a model made here: rows of a real run, by TRL, to a folder that is served to the same RLM."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.optimizers import collect, sft_rows
from rlm_dspy.optimizers.distill import write_rows
from rlm_dspy.testing import ScriptedLM, code

for module in ("torch", "trl", "peft", "datasets"):
    pytest.importorskip(module, reason="needs pip install 'rlm-dspy[trl]'")
pytestmark = pytest.mark.heavy

REPLY = code("SUBMIT(answer=len(context))")
OPTIONS: dict[str, Any] = {"max_iters": 3, "guidance": False, "interpreter": "subprocess"}


def rlm() -> RLM:
    return RLM("context, query -> answer: int", **OPTIONS)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Of runs that are right at once, and one whose first turn fails."""
    examples = [
        dspy.Example(context=letter * n, query="How long is it?", answer=n).with_inputs("context", "query")
        for letter, n in (("y", 20), ("x", 30), ("x", 40), ("x", 50))
    ]

    def policy(call: Any) -> str:
        fails = call.turn == 0 and "yyyy" in call.own[0]["content"]
        return code("1 / 0") if fails else REPLY

    attempts = collect(rlm(), examples, lambda e, p, t=None: e.answer == p.answer, lm=ScriptedLM(policy))
    return sft_rows(attempts)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> Path:
    import torch

    from rlm_dspy.training.tiny import make_tiny_model

    # Small matrices are not faster on several threads, and other tests want them.
    torch.set_num_threads(1)
    texts = [message["content"] for row in rows for message in row["messages"]]
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", texts)


def said(url: str, messages: list[dict[str, Any]]) -> str:
    plain = [{"role": message["role"], "content": message["content"]} for message in messages]
    body = {"model": "tuned", "messages": plain, "temperature": 0.0, "max_tokens": 100}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(str(folder / "model.safetensors")))


def test_what_is_tuned_here_is_served_and_plays_the_same_rlm(
    rows: list[dict[str, Any]], tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    from rlm_dspy.training.local_model import load
    from rlm_dspy.training.sequences import sequences
    from rlm_dspy.training.serve import Server
    from rlm_dspy.training.sft import sft
    from rlm_dspy.training.updates import logprobs

    before = load(tiny)
    made = [one for row in rows for one in sequences(row, before.tokenizer)]
    assert len(made) == len(rows) == 4, "a run of a root is one sequence"
    learned = {before.tokenizer.decode([i for i, m in zip(s.ids, s.mask, strict=True) if m]) for s in made}
    assert learned == {f"{REPLY}<|im_end|>"}, "the turn that failed is read and not learned"
    with torch.no_grad():
        lost = torch.cat([-logprobs(before, one)[torch.tensor(one.mask)] for one in made])

    watched: list[tuple[int, float]] = []
    capfd.readouterr()
    options: dict[str, Any] = {"steps": 60, "learning_rate": 1e-2, "batch": 4, "accumulate": 1}
    tuned = sft(rows, tiny, tmp_path / "tuned", watch=lambda step, loss: watched.append((step, loss)), **options)
    assert watched == list(enumerate(tuned.losses, 1))
    assert tuned.sequences == 4 and tuned.learned == sum(one.learned for one in made) and tuned.steps == 60
    # The loss is over the learned tokens and no others: it is what we reckon ourselves.
    assert tuned.losses[0] == pytest.approx(float(lost.mean()), abs=1e-3)
    assert tuned.losses[-1] < 0.1
    first, last = weights(tiny), weights(tmp_path / "tuned")
    assert set(first) == set(last) and all(not torch.equal(first[name], last[name]) for name in first)

    with Server(load(tmp_path / "tuned"), "tuned") as server:
        lm = dspy.LM("hosted_vllm/tuned", api_base=server.url, api_key="none", temperature=0.0, max_tokens=100)
        assert [said(server.url, row["messages"][:-1]) for row in rows] == [REPLY] * 4
        with dspy.context(lm=lm):
            predicted = rlm()(context="x" * 40, query="How long is it?")
        assert (predicted.answer, predicted.outcome) == (40, "submitted"), "the same program, with lm= changed"
    shown = capfd.readouterr()
    assert shown.out == ""
    assert not [told for told in ("Loading weights", "Writing model", "deprecated") if told in shown.err]


def test_lora_trains_adapters_alone_and_saves_the_whole_and_them(
    rows: list[dict[str, Any]], tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from rlm_dspy.training.local_model import load
    from rlm_dspy.training.sequences import sequences
    from rlm_dspy.training.sft import main
    from rlm_dspy.training.updates import logprobs

    write_rows(tmp_path / "rows.jsonl", rows, form="completion")
    out = tmp_path / "tuned"
    given = [str(tmp_path / "rows.jsonl"), "--model", str(tiny), "--out", str(out), "--lora", "4"]
    assert main([*given, "--steps", "6", "--learning-rate", "0.01", "--batch", "4", "--accumulate", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines][:6] == [f"step {n}" for n in range(1, 7)]
    told = json.loads((out / "rlm_dspy_training.json").read_text())
    assert told["lora"] and told["steps"] == 6 and told["losses"][-1] < told["losses"][0]
    first, last = weights(tiny), weights(out)
    moved = {name for name in first if not torch.equal(first[name], last[name])}
    assert moved and all("proj" in name for name in moved), "embeddings and norms stay as they were"
    # The folder and the base with its adapter are one model.
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged = load(out)
    (one, *_) = [s for row in rows for s in sequences(row, merged.tokenizer)]
    apart = load(tiny)
    apart.model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(str(tiny)), str(out / "adapter"))
    apart.model.eval()
    with torch.no_grad():
        assert torch.allclose(logprobs(merged, one), logprobs(apart, one), atol=1e-4)
    with pytest.raises(SystemExit):
        main(given)  # the folder is not empty


def test_rows_that_teach_nothing_are_refused(rows: list[dict[str, Any]], tiny: Path, tmp_path: Path) -> None:
    from rlm_dspy.training.sft import sft

    with pytest.raises(ConfigurationError, match="more than max_tokens=10"):
        sft(rows, tiny, tmp_path / "a", max_tokens=10)
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        sft(rows, tmp_path / "no model", tmp_path / "b")


def test_dspy_s_own_fine_tuning_trains_and_serves_here(tiny: Path, tmp_path: Path) -> None:
    from dspy.clients.utils_finetune import TrainDataFormat

    from rlm_dspy.optimizers import TrajectoryFinetune
    from rlm_dspy.training.provider import LocalProvider

    provider = LocalProvider(tmp_path / "models")
    lm = dspy.LM("hosted_vllm/base", provider=provider, finetuning_model=str(tiny), temperature=0.0, max_tokens=60)
    student = rlm()
    student.set_lm(lm)
    trainset = [
        dspy.Example(context="x" * n, query="How long is it?", answer=n).with_inputs("context", "query")
        for n in (30, 50)
    ]
    options: dict[str, Any] = {"steps": 60, "learning_rate": 1e-2, "batch": 2, "accumulate": 1}
    optimizer = TrajectoryFinetune(
        lambda e, p, t=None: e.answer == p.answer, train_kwargs=options, teacher_lm=ScriptedLM(lambda call: REPLY)
    )
    program = optimizer.compile(student, trainset)
    assert optimizer.rows["hosted_vllm/base", "act"] == 2
    made = program.act.lm
    assert made.model == f"hosted_vllm/{tmp_path / 'models' / 'model_1'}" and lm.model == "hosted_vllm/base"
    try:
        for predictor in program.predictors():
            predictor.lm.launch()
        predicted = program(context="x" * 40, query="How long is it?")
        assert (predicted.answer, predicted.outcome) == (40, "submitted")
    finally:
        made.kill()
    data = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    job = lm.finetune(data, TrainDataFormat.CHAT, {"max_tokens": 1})
    job.thread.join()
    assert "more than max_tokens=1" in str(job.result()) and job.status() == "failed"


def test_rows_without_anything_to_learn_are_counted_and_broken_ones_named(
    rows: list[dict[str, Any]], tiny: Path, tmp_path: Path
) -> None:
    from rlm_dspy.training.sft import sft

    asked = {"role": "user", "content": "a"}
    idle: list[dict[str, Any]] = [
        {"messages": []},
        {"messages": [asked]},
        {"prompt": [asked], "completion": []},
        {"messages": [asked, {"role": "assistant", "content": "b", "weight": 0}]},
    ]
    with pytest.raises(ConfigurationError, match=r"in 4 rows: no message in them is an assistant's"):
        sft(idle, tiny, tmp_path / "a")
    with pytest.raises(ConfigurationError, match="in 0 rows"):
        sft([], tiny, tmp_path / "b")
    for number, broken in enumerate(({}, {"messages": ["b"]}, {"messages": [{"role": "assistant", "content": None}]})):
        with pytest.raises(ConfigurationError, match=r"^row 2: (a row has|a message)"):
            sft([rows[0], broken], tiny, tmp_path / f"c{number}")
    # A reply of no text is one all the same: what is learned is to end it.
    empty = {"messages": [asked, {"role": "assistant", "content": ""}]}
    tuned = sft([*idle, empty], tiny, tmp_path / "d", steps=1)
    assert (tuned.rows, tuned.sequences, tuned.learned, tuned.too_long) == (5, 1, 1, 0)


def test_sequences_longer_than_the_model_s_context_are_left_out(tmp_path: Path) -> None:
    from rlm_dspy.training.sft import sft
    from rlm_dspy.training.tiny import make_tiny_model

    small = make_tiny_model(tmp_path / "small", hidden=16, window=64)
    short, long = (
        {"messages": [{"role": "user", "content": "a" * n}, {"role": "assistant", "content": "b"}]} for n in (4, 64)
    )
    tuned = sft([short, long], small, tmp_path / "tuned", steps=1)
    assert (tuned.sequences, tuned.too_long) == (1, 1)
    with pytest.raises(ConfigurationError, match="1 sequences have more than the 64 tokens of the model's context"):
        sft([long], small, tmp_path / "none")


def test_a_tiny_model_s_tokens_may_be_whole_lines(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from rlm_dspy.training.tiny import make_tiny_model

    text = "Call `SUBMIT` to end, and not before.\nüber\n\nCall `SUBMIT` to end, and not before."
    words, lines = (
        AutoTokenizer.from_pretrained(str(make_tiny_model(tmp_path / str(flag), [text] * 4, hidden=16, lines=flag)))
        for flag in (False, True)
    )
    (line, *_), *_ = ids = [lines(part)["input_ids"] for part in text.split("\n")]
    assert ids[0] == ids[3] == [line] and len(words(text.split("\n")[0])["input_ids"]) > 5
    for tokenizer in (words, lines):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
