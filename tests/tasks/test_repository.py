"""The family ``repository``: golds that are true, sizes, look-alikes, and what is worth nothing."""

from __future__ import annotations

import ast
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.tasks import repo_names, repo_text, repository
from rlm_dspy.testing import ScriptedLM, code

READER = Path(__file__).with_name("reader_repository.py")
SOURCE = READER.read_text().replace("from __future__ import annotations\n", "")
NAMES: dict[str, Any] = {}
exec(compile(SOURCE, "reader_repository", "exec"), NAMES)
CASES = [(kind, template) for kind, table in repository.TEMPLATES.items() for template in table]
TYPES = {"count": int, "find": str, "list": list, "compare": str}


def solve(example: Any) -> Any:
    return NAMES["solve"](example.context, example.query, example.template)


def worth(example: Any, answer: Any) -> float:
    return repository.score(example, dspy.Prediction(answer=answer))


def agrees(example: Any) -> None:
    read = solve(example)
    if example.kind == "list":
        assert 3 <= len(set(read)) == len(read) <= 8
    assert read == example.answer, (example.template, example.query)
    assert type(example.answer) is TYPES[example.kind]
    assert worth(example, read) == 1.0


def size(example: Any) -> int:
    return sum(map(len, example.context.values()))


@pytest.mark.parametrize("kind", repository.KINDS)
def test_every_template_has_a_true_gold(kind: str) -> None:
    for tokens in (1_000, 3_000, 30_000):
        templates = set()
        for example in repository.generate(24, tokens, 5, [kind]):
            agrees(example)
            templates.add(example.template)
        assert templates == set(repository.TEMPLATES[kind])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(-(2**40), 2**40), tokens=st.integers(1_000, 12_000), kind=st.sampled_from(repository.KINDS))
def test_golds_and_sizes_hold_whatever_the_seed(seed: int, tokens: int, kind: str) -> None:
    for example in repository.generate(6, tokens, seed, [kind]):
        agrees(example)
        assert 4 * tokens <= size(example) <= 4 * tokens + 1_800
        assert example.files == len(example.context) and list(example.context) == sorted(example.context)


def test_python_is_python_and_settings_are_settings() -> None:
    suffixes = set()
    for example in repository.generate(24, 8_000, 7):
        suffixes |= {path.rpartition(".")[2] for path in example.context}
        for path, text in example.context.items():
            if path.endswith(".py"):
                ast.parse(text)
    assert suffixes == {"py", "ts", "go", "sql", "sh", "md", "yaml"}


def test_a_repository_is_as_large_as_one() -> None:
    """A megabyte, and the gold of it."""
    for example in repository.generate(12, 250_000, 3):
        agrees(example)
        assert 60 <= example.files <= 400


@pytest.mark.heavy
def test_ten_million_tokens() -> None:
    for kind in repository.KINDS:
        began = time.process_time()
        (example,) = repository.generate(1, 10_000_000, 1, [kind])
        # Half a second on the machine it was written on.
        assert time.process_time() - began < 20
        assert 40_000_000 <= size(example) < 40_002_000 and example.files > 2_000
        agrees(example)


def test_what_is_planted_lies_all_over() -> None:
    depths = Counter[int]()
    for example in repository.generate(40, 20_000, 9, ["find"]):
        if example.template not in ("find_caller_with", "find_test"):
            continue
        before = 0
        for path, text in example.context.items():
            if f"def {example.answer}(" in text:
                depths[min(3, int(4 * before / size(example)))] += 1
            before += len(path) + len(text)
    assert len(depths) >= 3, depths


def test_a_text_search_is_not_enough() -> None:
    """What a search for the name finds is more than what is asked for."""
    for example in repository.generate(12, 5_000, 11, ["count"]):
        if example.template == "count_remarks":
            owner = re.search(r"TODO\((\w+)\)|there for (\w+)", example.query)
            assert owner is not None
            pattern = rf"\b{owner[1] or owner[2]}\b|TODO"
        else:
            pattern = re.findall(r"`(\w+)`", example.query)[0] + r"\("
        assert sum(len(re.findall(pattern, text)) for text in example.context.values()) > example.answer
    for example in repository.generate(12, 5_000, 11, ["list"]):
        if example.template != "list_overrides":
            name = re.findall(r"`(\w+)`", example.query)[0]
            assert any(name + more in text for text in example.context.values() for more in ("_later", "_OLD"))


def test_names_of_facts_are_no_part_of_others() -> None:
    names = [*repo_names.FUNCTIONS, *repo_names.OWNERS, *repo_names.VARIABLES, *repo_names.CONSTANTS]
    names += [f"{verb}_{noun}" for verb in repo_names.CALLERS["verbs"] for noun in repo_names.CALLERS["nouns"]]
    assert len(set(names)) == len(names)
    assert not [(one, other) for one in names for other in names if one != other and one in other]
    words = {part for name in (*repo_names.FUNCTIONS, *repo_names.SERVICES) for part in name.split("_")}
    words |= {word for part in repo_names.CALLERS.values() for word in part} | set(repo_names.OWNERS)
    assert not words & repo_text.WORDS


def test_the_same_arguments_give_the_same_and_longer_batches_begin_alike() -> None:
    first = [dict(one) for one in repository.generate(5, 2_000, 3)]
    assert first == [dict(one) for one in repository.generate(9, 2_000, 3)][:5]
    assert first != [dict(one) for one in repository.generate(5, 2_000, 4)]


def test_an_oracle_program_is_always_right(sandbox: Environment) -> None:
    """Through `RLM`, with the repository as a dict in a real sandbox."""
    for example in repository.generate(8, 2_000, 17):
        step = f"{SOURCE}\nSUBMIT(answer=solve(context, query, {example.template!r}))"
        rlm = RLM(example.signature, interpreter=sandbox, guidance=False, max_iters=2)
        with dspy.context(lm=ScriptedLM([code(step)])):
            prediction = rlm(**example.inputs())
        assert prediction.outcome == "submitted", prediction.trajectory
        assert worth(example, prediction.answer) == 1.0, (example.template, prediction.answer, example.answer)


def test_trivial_programs_come_to_what_they_are_worth() -> None:
    """A constant is nearly always wrong; naming the first of two is right half the time, and nothing else is."""
    batch = repository.generate(80, 1_000, 2)
    guess = {"count": 4, "find": "submit_invoice", "list": ["config/base.yaml"], "compare": "billing"}
    assert sum(worth(one, guess[one.kind]) for one in batch) / len(batch) < 0.12
    pairs = repository.generate(80, 1_000, 2, ["compare"])
    scores = []
    for one in pairs:
        named = re.search(r"`?(\w+)`? or `?(\w+)`?\?", one.query)
        assert named is not None and one.answer in named.groups()
        scores.append(worth(one, named[1]))
        assert worth(one, f"{named[1]} or {named[2]}") == worth(one, " ".join(named.groups())) == 0.0
        assert worth(one, list(named.groups())) == 0.0
    assert 0.3 < sum(scores) / len(scores) < 0.7


@pytest.mark.parametrize(
    "answer",
    [None, "", [], {}, float("nan"), float("inf"), True, b"x", object(), "x" * 1_000_000, {"answer": 1}, [[1], [2]]],
)
def test_what_is_no_answer_is_worth_nothing(answer: Any) -> None:
    for example in repository.generate(8, 1_000, 21):
        assert worth(example, answer) == 0.0
        assert worth(example, example.query) == 0.0


def test_naming_everything_is_worth_little() -> None:
    for example in repository.generate(12, 5_000, 23, ["list"]):
        everything = (
            list(example.context)
            if "/" in example.answer[0]
            else re.findall(r"def (\w+)", "\n".join(example.context.values()))
        )
        assert set(everything) >= set(example.answer)
        assert worth(example, everything) < 0.5


def test_answers_differ_over_a_batch() -> None:
    for kind, least in (("find", 25), ("count", 8), ("compare", 12)):
        answers = Counter(str(one.answer) for one in repository.generate(48, 8_000, 8, [kind]))
        assert len(answers) >= least and answers.most_common(1)[0][1] <= 16, answers
