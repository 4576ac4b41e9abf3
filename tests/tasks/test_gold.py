"""The golds are true: a second implementation that reads the text comes to the same, and so does a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, tasks
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code

FAMILIES = tasks.families()
CASES = [(family, kind) for family in FAMILIES for kind in tasks.get(family).KINDS]
# The two families whose kinds are those of `SIGNATURES`.
PLAIN = ("log_forensics", "needles")
TYPES = {"count": int, "find": str, "list": list, "compare": str}


def agrees(example: dspy.Example, solve: Callable[[Any], Any]) -> None:
    """Both golds are the same, of the right type, and worth 1.0."""
    read = solve(example)
    assert read == example.answer, (example.template, example.query)
    if example.family in PLAIN:
        assert type(example.answer) is TYPES[example.kind]
        if example.kind == "list":
            assert 3 <= len(set(read)) == len(read) <= 8
        if example.kind == "count":
            assert read > 0
    assert tasks.score(example, dspy.Prediction(answer=read)) == 1.0


@pytest.mark.parametrize("tokens", [1000, 20_000])
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_every_template_has_a_true_gold(family: str, kind: str, tokens: int, solve: Callable[[Any], Any]) -> None:
    templates = set()
    for example in tasks.generate(30, tokens, seed=5, family=family, kinds=[kind]):
        agrees(example, solve)
        templates.add(example.template)
    assert len(templates) >= (6 if family in PLAIN else 1)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(-(2**40), 2**40),
    tokens=st.integers(1000, 12_000),
    case=st.sampled_from(CASES),
)
def test_golds_are_true_whatever_the_seed_and_size(
    seed: int, tokens: int, case: tuple[str, str], solve: Callable[[Any], Any]
) -> None:
    family, kind = case
    for example in tasks.generate(10, tokens, seed, family=family, kinds=[kind]):
        agrees(example, solve)


def test_golds_are_true_at_a_megabyte(solve: Callable[[Any], Any]) -> None:
    for example in tasks.generate(2 * len(FAMILIES), 250_000, seed=3):
        agrees(example, solve)


@pytest.mark.heavy
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_an_oracle_program_is_always_right(
    family: str, kind: str, sandbox: Environment, reader_source: Callable[[str], str]
) -> None:
    """Through `RLM`, from the signature of the example, in a real sandbox."""
    for example in tasks.generate(3, 3000, seed=17, family=family, kinds=[kind]):
        proves(example, sandbox, reader_source(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_oracle_program_is_right(family: str, sandbox: Environment, reader_source: Callable[[str], str]) -> None:
    (example,) = tasks.generate(1, 3000, seed=19, family=family)
    proves(example, sandbox, reader_source(family))


def proves(example: dspy.Example, sandbox: Environment, source: str) -> None:
    step = f"{source}\nSUBMIT(answer=solve(context, query, {example.template!r}))"
    rlm = RLM(example.signature, interpreter=sandbox, max_iters=2, guidance=False)
    with dspy.context(lm=ScriptedLM([code(step)])):
        prediction = rlm(**example.inputs())
    assert prediction.outcome == "submitted", prediction.trajectory
    assert tasks.score(example, prediction) == 1.0, (example.template, prediction.answer, example.answer)


def test_a_program_that_guesses_is_nearly_always_wrong() -> None:
    guesses = {"count": 7, "find": "u1234", "list": ["u1234", "Monday", "/v1/orders"], "compare": "checkout-api"}
    batch = tasks.generate(80, 1000, seed=2, family=PLAIN)
    scores = [tasks.score(example, dspy.Prediction(answer=guesses[example.kind])) for example in batch]
    assert sum(scores) / len(scores) < 0.2


def test_score_is_a_metric_for_evaluate(solve: Callable[[Any], Any]) -> None:
    class Reads(dspy.Module):
        def forward(self, context: str, query: str) -> dspy.Prediction:
            example = next(one for one in batch if one.query == query and one.context == context)
            return dspy.Prediction(answer=solve(example))

    batch = tasks.generate(2 * len(FAMILIES), 1000, seed=23)
    result = dspy.Evaluate(devset=batch, metric=tasks.score, num_threads=1, display_progress=False)(Reads())
    assert result.score == 100.0
