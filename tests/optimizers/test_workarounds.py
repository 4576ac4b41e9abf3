"""What is wrong with stock optimisers, each shown by the stock one, and right with ours.

Where a first half fails, DSPy has mended it: take the repair, and its line, out of optimizers/workarounds.py.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

import dspy
import numpy as np
import pytest
from dspy.propose.dataset_summary_generator import create_dataset_summary

from rlm_dspy import optimizers
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM

MEGABYTE = 1_000_000


def size_of(call: Any) -> int:
    return sum(len(message["content"]) for message in call.messages)


def test_simba_shows_its_advisor_whole_inputs_and_the_source(sandbox: Environment, toy: Any) -> None:
    rlm = toy.program(sandbox)
    example = toy.example(7, (), chars=MEGABYTE)
    with dspy.context(lm=ScriptedLM(toy.root), trace=[]):
        prediction = rlm(**example.inputs())
        trace = list(dspy.settings.trace)
    ran = {"example": example, "prediction": prediction, "trace": trace, "output_metadata": {}}
    names = {id(predictor): name for name, predictor in rlm.named_predictors()}
    sizes = {}
    for kind, optimizer in (
        ("stock", dspy.SIMBA(metric=toy.metric, max_demos=0)),
        ("ours", optimizers.mended(dspy.SIMBA(metric=toy.metric, max_demos=0))),
    ):
        advisor = ScriptedLM(toy.propose)
        (rule,) = optimizer.strategies
        compiled = rlm.deepcopy()
        bucket = [{**ran, "score": 1.0}, {**ran, "score": 0.0}]
        assert rule(
            bucket, compiled, predictor2name=names, batch_10p_score=0.0, batch_90p_score=1.0, prompt_model=advisor
        )
        sizes[kind] = size_of(advisor.calls[0])
        assert ("class RLM(" in advisor.calls[0].prompt) is (kind == "stock")
        assert toy.RULES["separator"] in compiled.act.signature.instructions
        assert bucket[0]["example"] is example
    assert sizes["stock"] > MEGABYTE
    assert sizes["ours"] < 30_000, sizes


def test_miprov2_describes_its_dataset_by_whole_examples(toy: Any) -> None:
    examples = toy.trainset(chars=MEGABYTE)
    sizes = []
    for trainset in (examples, optimizers.previewed(examples)):
        proposer = ScriptedLM(toy.propose)
        create_dataset_summary(trainset=trainset, view_data_batch_size=10, prompt_model=proposer)
        sizes.append(max(map(size_of, proposer.calls)))
    assert sizes[0] > 10 * MEGABYTE
    assert sizes[1] < 12_000, sizes


def test_infer_rules_induces_from_examples_that_have_no_field_of_a_predictor(sandbox: Environment, toy: Any) -> None:
    rlm, examples = toy.program(sandbox), toy.trainset()
    rlm.act.demos = [dspy.Example(task="t", turns=[], reasoning="r", code="print(log)", augmented=True), *examples]
    stock = dspy.InferRules(metric=toy.metric)
    assert stock.get_predictor_demos(examples, rlm.act) == [{}] * len(examples)
    ours = optimizers.mended(dspy.InferRules(metric=toy.metric))
    (step,) = ours.get_predictor_demos(examples, rlm.act)
    assert step["code"] == "print(log)"
    plain = dspy.Predict("log -> amount: int")
    assert ours.get_predictor_demos(examples, plain) == stock.get_predictor_demos(examples, plain) != []


def test_knn_few_shot_forgets_its_demonstrations_when_awaited(sandbox: Environment, toy: Any) -> None:
    def embed(texts: list[str]) -> Any:
        return np.ones((len(texts), 2), dtype=np.float32)

    seen: list[bool] = []

    def root(call: Any) -> str:
        seen.append(toy.known(call) != set())
        return str(toy.root(call))

    (example, *_), hidden = toy.trainset(), toy.heldout()[0]
    given = {"metric": toy.metric, "max_bootstrapped_demos": 1, "max_labeled_demos": 0}
    for mend in (lambda optimizer: optimizer, optimizers.mended):
        compiled = mend(dspy.KNNFewShot(1, [example, example], dspy.Embedder(embed), **given)).compile(
            toy.program(sandbox)
        )
        with dspy.context(lm=ScriptedLM(root)):
            asyncio.run(compiled.acall(**hidden.inputs()))
            awaited = seen[-1]
            compiled(**hidden.inputs())
            assert seen[-1]
        assert awaited is (mend is optimizers.mended)


def test_an_ensemble_saves_nothing_of_compiled_programs(sandbox: Environment, toy: Any) -> None:
    compiled = toy.program(sandbox)
    compiled.sub.signature = compiled.sub.signature.with_instructions("Learned.")
    compiled._compiled = True
    plain = dspy.ChainOfThought("a -> b")
    plain._compiled = True
    assert dspy.Ensemble().compile([compiled, plain]).dump_state() == {}
    ensemble: Any = optimizers.mended(dspy.Ensemble()).compile([compiled, plain])
    state = ensemble.dump_state()
    assert state["programs[0].sub"]["signature"]["instructions"] == "Learned."
    assert "programs[1].predict" in state
    assert compiled._compiled and plain._compiled
    assert ensemble.programs[0].sub is compiled.sub


def test_a_majority_of_predictions_needs_to_be_told_of_what(sandbox: Environment, toy: Any) -> None:
    with dspy.context(lm=ScriptedLM(toy.root)):
        predictions = [toy.program(sandbox)(**toy.trainset()[n].inputs()) for n in (0, 1, 0)]
    with pytest.raises(TypeError):
        dspy.majority(predictions)
    vote = functools.partial(dspy.majority, field="amount", normalize=None)
    assert vote(predictions).amount == toy.trainset()[0].amount


def test_fine_tuning_each_predictor_takes_the_rows_of_others(sandbox: Environment, toy: Any, trainer: Any) -> None:
    student = toy.program(sandbox)
    with pytest.warns(UserWarning, match="set_lm"):
        student.set_lm(ScriptedLM(toy.every_role, model="scripted/base", provider=trainer))
    optimizer = dspy.BootstrapFinetune(
        metric=toy.metric, multitask=False, num_threads=8, adapter=optimizers.TraceAdapter()
    )
    optimizer.compile(student, trainset=toy.trainset()[:3])
    order = [name for name, _ in student.named_predictors()]
    # The n-th predictor gets the n-th call of each run, whoever made it, so that those that no run called are trained
    # too. Which calls those are depends on the order in which the steps of a run end.
    for unused in ("extract", "compact"):
        rows = trainer.rows(f"scripted/base-tuned-{order.index(unused)}")
        assert rows != [], f"rows of `act` or `sub`, for `{unused}`"


def test_what_is_mended_takes_the_arguments_that_it_took(
    sandbox: Environment, toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BetterTogether looks at the signature of each optimiser's ``compile`` to know what to hand it. A tracker may have
    patched the classes, as MLflow does."""
    lm = ScriptedLM([])
    kinds: list[Callable[[], Any]] = [
        lambda: dspy.SIMBA(metric=toy.metric, prompt_model=lm),
        lambda: dspy.InferRules(metric=toy.metric),
        lambda: dspy.Ensemble(),
        lambda: dspy.MIPROv2(metric=toy.metric, prompt_model=lm, task_model=lm),
        lambda: dspy.KNNFewShot(1, toy.trainset()[:1], dspy.Embedder(lambda texts: np.ones((len(texts), 2)))),
    ]
    for make in kinds:
        assert inspect.signature(optimizers.mended(make()).compile) == inspect.signature(make().compile)

    compile = dspy.Ensemble.compile

    @functools.wraps(compile)
    def patched(self: Any, *args: Any, **given: Any) -> Any:
        return compile(self, *args, **given)

    monkeypatch.setattr(dspy.Ensemble, "compile", patched)
    taken = inspect.signature(optimizers.mended(dspy.Ensemble()).compile).parameters
    assert list(taken) == ["programs"]


def test_any_other_optimizer_stays_as_it_is_and_none_is_mended_twice(toy: Any) -> None:
    other = dspy.LabeledFewShot(k=3)
    before = dict(vars(other))
    assert optimizers.mended(other) is other
    assert {name: value for name, value in vars(other).items() if name != "rlm_dspy_mended"} == before
    simba = optimizers.mended(dspy.SIMBA(metric=toy.metric, prompt_model=ScriptedLM([])))
    strategies = list(simba.strategies)
    assert optimizers.mended(simba).strategies == strategies


def test_previewed_examples_are_equal_to_those_they_show(toy: Any) -> None:
    examples = [*toy.trainset(chars=MEGABYTE)[:2], dspy.Example(a=1, b={"k": "v" * 5_000}), dspy.Example()]
    shown = optimizers.previewed(examples)
    assert shown == examples
    assert [len(repr(one)) < 3_000 for one in shown] == [True] * 4
    assert shown[0].inputs() == examples[0].inputs() and shown[0].labels() == examples[0].labels()
    assert shown[0].inputs().log is examples[0].log
    assert shown[0].without("query").keys() == ["log", "amount", "complaints", "hidden"]
    assert json.loads(json.dumps(shown[0].toDict()))["query"] == toy.QUERY
    assert repr(dspy.Example(a=1).with_inputs("a")) == repr(
        optimizers.previewed([dspy.Example(a=1).with_inputs("a")])[0]
    )
