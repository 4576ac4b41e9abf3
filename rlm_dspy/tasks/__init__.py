"""Tasks with known answers over contexts of any size: to measure, compare, optimise and train programs.

    from rlm_dspy import RLM, tasks

    for example in tasks.generate(n=8, tokens=250_000, seed=1):
        prediction = RLM(example.signature)(**example.inputs())
        print(example.family, example.kind, tasks.score(example, prediction))

The answers are not read from the text: the generator decides what is true and writes the text round it.

    base.py             what a family is, what an example holds, how a batch is put together
    scoring.py          how right an answer is
    log_forensics.py    family: logs of a company's services
    log_world.py        its services, hosts, users and ordinary entries
    log_formats.py      its three ways to write an entry
    log_plans.py        what a question plants, matches and asks
    log_count.py, log_find.py, log_list.py, log_compare.py    its questions, by kind
    needles.py          family: facts hidden in long prose
    needle_facts.py     its facts and questions
    prose.py            its prose
    _draw.py            draws that are the same on every machine

Kinds of questions: ``count`` (int), ``find`` (str), ``list`` (list of str), ``compare`` (str). A context has four
characters for each token asked for, whatever a tokenizer makes of it: 250 000 tokens are 1 MB.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import dspy

    from rlm_dspy.tasks.base import Family

__all__ = ["FAMILIES", "example", "families", "generate", "get", "score"]

#: Name of a family to its module, which is imported when first used.
FAMILIES = {
    "log_forensics": "rlm_dspy.tasks.log_forensics",
    "needles": "rlm_dspy.tasks.needles",
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
        family: A name, several, or None for all.
        kinds: Of ``count``, ``find``, ``list``, ``compare``; all if None.

    Returns:
        Examples with the inputs ``context`` and ``query``, the gold in ``answer``, and ``kind``, ``family``,
        ``signature`` (for `RLM`), ``template``, ``seed``, ``tokens``, and what the family adds.

    Raises:
        ConfigurationError: An argument is not as described.
    """
    from rlm_dspy.errors import ConfigurationError

    names = [family] if isinstance(family, str) else list(dict.fromkeys(FAMILIES if family is None else family))
    chosen = [get(name) for name in names]
    if not chosen:
        raise ConfigurationError(f"no family of tasks given; there are: {', '.join(FAMILIES)}")
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        raise ConfigurationError(f"n must be a whole number, 0 or more, not {n!r}")
    shares = [n // len(chosen) + (place < n % len(chosen)) for place in range(len(chosen))]
    batches = [one.generate(share, tokens, seed, kinds) for one, share in zip(chosen, shares, strict=True)]
    return [batches[place % len(chosen)][place // len(chosen)] for place in range(n)]


def example(
    number: int,
    tokens: int,
    seed: int,
    family: str | Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> dspy.Example:
    """The example ``generate(n, tokens, seed, family, kinds)[number]`` of any longer batch, without making the others.

    Args:
        number: From 0.
        tokens, seed, family, kinds: As for `generate`.

    Raises:
        ConfigurationError: An argument is not as described.
    """
    from rlm_dspy.errors import ConfigurationError
    from rlm_dspy.tasks.base import alone

    names = [family] if isinstance(family, str) else list(dict.fromkeys(FAMILIES if family is None else family))
    if not isinstance(number, int) or isinstance(number, bool) or number < 0 or not names:
        generate(0, tokens, seed, names, kinds)
        raise ConfigurationError(f"number must be a whole number, 0 or more, not {number!r}")
    place = number // len(names)
    with alone(place):
        return get(names[number % len(names)]).generate(place + 1, tokens, seed, kinds)[-1]


def score(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
    """How right a prediction is, 0.0 to 1.0: the metric of the example's family; see `rlm_dspy.tasks.scoring`.

    It never raises for what a prediction holds, and takes the arguments that DSPy's optimisers hand to a metric.
    """
    name = getattr(example, "family", None)
    if name in FAMILIES:
        return get(name).score(example, prediction, trace)
    from rlm_dspy.tasks.scoring import score as by_type

    return by_type(example, prediction, trace, pred_name, pred_trace)
