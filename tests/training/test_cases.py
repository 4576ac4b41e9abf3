"""Cases of tasks: made once for a group of rollouts, and never taken for another's."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("verifiers", reason="needs pip install 'rlm-dspy[train]'")

from rlm_dspy.training.cases import Case, CaseData, case_of

made: list[str] = []


class Sums(CaseData):
    """Of two task sets that are told alike."""

    number: int

    def case(self) -> Case:
        made.append("sum")
        return Case({"query": f"{self.number} + 1"}, "query -> answer: int")


class Products(Sums):
    """The other one."""

    def case(self) -> Case:
        made.append("product")
        return Case({"query": f"{self.number} * 2"}, "query -> answer: int")


def test_two_task_sets_of_the_same_facts_in_one_process_keep_their_own_cases() -> None:
    made.clear()

    async def go() -> list[str]:
        asked = [kind(prompt="p", idx=n, number=7) for n in range(5) for kind in (Sums, Products)]
        return [str(case.inputs["query"]) for case in await asyncio.gather(*map(case_of, asked))]

    assert asyncio.run(go()) == ["7 + 1", "7 * 2"] * 5
    assert sorted(made) == ["product", "sum"], "made once for all rollouts of a task"
