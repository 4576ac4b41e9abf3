"""Retrieval, tracing and counting in long texts: the family ``haystack``, after the tasks of RULER (arXiv 2404.06654).

    single        the number of the one key that there is, in prose                         int
    multi_key     the number of one key among others                                        int
    multi_value   all numbers of one key, 4 to 8                                            list of int
    multi_query   the numbers of 3 to 5 keys                                                list of int
    variables     all variables that have a value, directly or by way of others, 5 to 9     list of str
    words         the words that occur most often, or how often the first of them does      list of str, int
    questions     a fact about a person, one to three documents away, among documents       str

What is searched stands in prose (``prose`` templates), or all of the text looks like it (``lines``). Code alone can
answer all but `questions`, whose documents say things in several wordings; whoever does not read is right in under one
of twenty. ``depths`` of needles in prose says where they stand, as shares of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlm_dspy.tasks import haystack_documents, haystack_keys, haystack_variables, haystack_words
from rlm_dspy.tasks.base import Batches, Spot, Task
from rlm_dspy.tasks.scoring import score

__all__ = ["KINDS", "NAME", "TEMPLATES", "example", "generate", "score"]

NAME = "haystack"
TEMPLATES: dict[str, Mapping[str, Callable[[Spot], Task]]] = {
    **haystack_keys.TEMPLATES,
    "variables": haystack_variables.TEMPLATES,
    "words": haystack_words.TEMPLATES,
    "questions": haystack_documents.TEMPLATES,
}
KINDS = tuple(TEMPLATES)


def _build(spot: Spot) -> Task:
    return TEMPLATES[spot.kind][spot.template](spot)


_BATCHES = Batches(NAME, TEMPLATES, _build)
generate, example = _BATCHES.generate, _BATCHES.example
