"""Tasks with known answers over contexts of any size: to measure, compare, optimise and train programs.

    from rlm_dspy import RLM, tasks

    for example in tasks.generate(n=8, tokens=250_000, seed=1):
        prediction = RLM(example.signature)(**example.inputs())
        print(example.family, example.kind, tasks.score(example, prediction))

The answers are not read from the text: the generator decides what is true and writes the text round it.

    base.py             what a family is, what an example holds, how a batch is put together
    scoring.py          how right an answer is
    values.py           values as they are compared
    pair_sets.py        how right a set of pairs is
    log_forensics.py    family: logs of a company's services
    log_world.py        its services, hosts, users and ordinary entries
    log_formats.py      its three ways to write an entry
    log_plans.py        what a question plants, matches and asks
    log_count.py, log_find.py, log_list.py, log_compare.py    its questions, by kind
    needles.py          family: facts hidden in long prose
    needle_facts.py     its facts and questions
    prose.py            its prose
    labelled_records.py family: aggregation over records whose label has to be understood
    record_texts.py     what its records say
    record_world.py     who wrote what when, and how it is written down
    record_counts.py, record_users.py, record_dates.py    its questions, by kind
    pairs.py            family: pairs of users of such records
    pair_plans.py       its conditions
    graph_walk.py       family: paths through a directed graph
    graphs.py           its graphs
    haystack.py         family: retrieval, tracing and counting in long texts
    haystack_keys.py, haystack_variables.py, haystack_words.py, haystack_documents.py    its questions
    repository.py       family: a code repository, a dict of path to text
    repo_calls.py, repo_settings.py    its questions
    repo_facts.py, repo_names.py       what they plant, and what it is called
    repo_text.py        its ordinary code
    _draw.py            draws that are the same on every machine

A family has kinds of questions (``KINDS``), and an example says the type of its answer (``signature``). A context has
four characters for each token asked for, whatever a tokenizer makes of it: 250 000 tokens are 1 MB.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import dspy

    from rlm_dspy.tasks.base import Family

__all__ = ["FAMILIES", "example", "families", "generate", "get", "iterate", "score"]

#: Name of a family to its module, which is imported when first used.
FAMILIES = {
    "log_forensics": "rlm_dspy.tasks.log_forensics",
    "needles": "rlm_dspy.tasks.needles",
    "labelled_records": "rlm_dspy.tasks.labelled_records",
    "pairs": "rlm_dspy.tasks.pairs",
    "graph_walk": "rlm_dspy.tasks.graph_walk",
    "haystack": "rlm_dspy.tasks.haystack",
    "repository": "rlm_dspy.tasks.repository",
}


def families() -> tuple[str, ...]:
    """The names of all families."""
    return tuple(FAMILIES)


def get(name: str) -> Family:
    """The family of that name.

    Raises:
        ConfigurationError: There is none; the message lists them.
    """
    if name not in FAMILIES:
        from rlm_dspy.errors import ConfigurationError

        raise ConfigurationError(f"no family of tasks {name!r}; there are: {', '.join(FAMILIES)}")
    return cast("Family", importlib.import_module(FAMILIES[name]))


def generate(
    n: int,
    tokens: int,
    seed: int,
    family: str | Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> list[dspy.Example]:
    """``n`` examples, the families in turn and the kinds of each in turn.

    Args:
        n: How many; from 0.
        tokens: Size of each context, four characters a token; from 1 000.
        seed: Any int. The same arguments give the same bytes, on any machine.
        family: A name, several, or None for all that have one of the kinds.
        kinds: Of the ``KINDS`` of the families; all if None.

    Returns:
        Examples with the inputs ``context`` and ``query``, the gold in ``answer``, and ``kind``, ``family``,
        ``signature`` (for `RLM`), ``template``, ``seed``, ``tokens``, and what the family adds.

    Raises:
        ConfigurationError: An argument is not as described.
    """
    return list(iterate(n, tokens, seed, family, kinds))


def iterate(
    n: int, tokens: int, seed: int, family: str | Sequence[str] | None = None, kinds: Sequence[str] | None = None
) -> Iterator[dspy.Example]:
    """The examples of `generate`, each built when it is taken: many large ones need the memory of one.

    Arguments and errors are those of `generate`; the arguments are checked by the call, not when the first is taken.
    """
    from rlm_dspy.errors import ConfigurationError

    chosen = _chosen(family, kinds)
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        raise ConfigurationError(f"n must be a whole number, 0 or more, not {n!r}")
    shares = [n // len(chosen) + (place < n % len(chosen)) for place in range(len(chosen))]
    makers = [_maker(one, share, tokens, seed, kinds) for one, share in zip(chosen, shares, strict=True)]
    return (makers[place % len(makers)](place // len(makers)) for place in range(n))


def example(
    number: int, tokens: int, seed: int, family: str | Sequence[str] | None = None, kinds: Sequence[str] | None = None
) -> dspy.Example:
    """The example ``generate(n, tokens, seed, family, kinds)[number]`` of any longer batch, without making the others.

    Args:
        number: From 0.
        tokens, seed, family, kinds: As for `generate`.

    Raises:
        ConfigurationError: An argument is not as described.
    """
    from rlm_dspy.errors import ConfigurationError

    chosen = _chosen(family, kinds)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ConfigurationError(f"number must be a whole number, 0 or more, not {number!r}")
    place = number // len(chosen)
    return _maker(chosen[number % len(chosen)], place + 1, tokens, seed, kinds)(place)


def _chosen(family: str | Sequence[str] | None, kinds: Sequence[str] | None) -> list[Family]:
    """The families that take turns."""
    from rlm_dspy.errors import ConfigurationError

    if isinstance(kinds, str):
        raise ConfigurationError(f"kinds is a list of names: write kinds=[{kinds!r}]")
    names = [family] if isinstance(family, str) else list(dict.fromkeys(FAMILIES if family is None else family))
    chosen = [get(name) for name in names]
    if not chosen:
        raise ConfigurationError(f"no family of tasks given; there are: {', '.join(FAMILIES)}")
    if kinds is None:
        return chosen
    unknown = [kind for kind in kinds if not any(kind in one.KINDS for one in chosen)]
    if unknown or not kinds:
        said = f"no kind {unknown[0]!r}" if unknown else "no kinds given"
        raise ConfigurationError("; ".join([said, *(f"{one.NAME} has: {', '.join(one.KINDS)}" for one in chosen)]))
    return chosen if family is not None else [one for one in chosen if any(kind in one.KINDS for kind in kinds)]


def _maker(
    family: Family, n: int, tokens: int, seed: int, kinds: Sequence[str] | None
) -> Callable[[int], dspy.Example]:
    """What makes the examples of one family, whose arguments are in order: one by one, or all where it makes no one.

    Of the kinds it makes its own; a family that was named and has none of them says so.
    """
    theirs = kinds and ([kind for kind in kinds if kind in family.KINDS] or kinds)
    one: Callable[..., dspy.Example] | None = getattr(family, "example", None)
    made = family.generate(n if one is None else 0, tokens, seed, theirs)
    return made.__getitem__ if one is None else lambda number: one(number, tokens, seed, theirs)


def score(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
    """How right a prediction is, 0.0 to 1.0: the metric of the example's family; see `rlm_dspy.tasks.scoring`.

    It never raises for what a prediction holds, and takes the arguments that DSPy's optimisers hand to a metric.
    """
    name = getattr(example, "family", None)
    if name in FAMILIES:
        return get(name).score(example, prediction, trace)
    from rlm_dspy.tasks.scoring import score as by_type

    return by_type(example, prediction, trace, pred_name, pred_trace)
