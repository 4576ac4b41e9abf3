"""Questions about a repository: who calls what, with what, and which test does."""

from __future__ import annotations

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.repo_facts import Plan, Plant, call, caller, defined, mention
from rlm_dspy.tasks.repo_names import FUNCTIONS, OPTIONS, callers

__all__ = ["COMPARE", "COUNT", "FIND", "LIST"]


def _more(characters: int, least: int, most: int) -> int:
    """How many of a sort there may be in a repository of that size."""
    return max(least, min(most, characters // 2_500))


def caller_with(draw: Draw, characters: int) -> Plan:
    """The function that calls another one with a certain value; the value may be a constant beside it."""
    name, option = draw.choice(FUNCTIONS), draw.choice(OPTIONS)
    others = _more(characters, 2, 12)
    names = callers(draw, 1 + others + 3)
    values = draw.sample(range(2, 60), 1 + others)
    plants = []
    for function, value in zip(names, values, strict=False):
        if draw.chance(0.4):
            constant = f"{option.upper()}_OF_{function.upper()}"
            plants.append(
                caller(function, [call(name, option, constant, draw)], draw, before=f"\n{constant} = {value}\n")
            )
        else:
            plants.append(caller(function, [call(name, option, value, draw)], draw))
    plants += [mention(function, name, option, values[0], draw) for function in names[-3:]]
    query = draw.choice(
        (
            "Which function calls `{name}` with `{option}` set to {value}? Answer with the function's name.",
            "One function hands {value} as `{option}` to `{name}`. What is the name of that function?",
        )
    ).format(name=name, option=option, value=values[0])
    return Plan(query, names[0], [*plants, defined(name, option, draw)])


def _test(function: str, body: str) -> Plant:
    return Plant("test", f"\n\ndef {function}():\n    payload = [1, 2, 3]\n{body}")


def _tests(name: str, others: list[str], names: list[str], right: int, draw: Draw) -> list[Plant]:
    """Tests, the first ``right`` of which call ``name``; the others have its name in theirs, or in a remark."""
    plants = []
    for place, function in enumerate(names):
        other = draw.choice(others)
        if place < right:
            option = draw.choice(("", ", 3", ", 5"))
            body = f"    # Not that of {other}.\n    assert {name}(payload{option}) is not None\n"
        else:
            body = draw.choice(
                (
                    f"    assert {other}(payload) is not None  # as {name}(payload) does\n",
                    f'    assert {other}(payload) != "{name}(payload)"\n',
                    f"    assert {name}_later(payload) >= 0\n",
                )
            )
        plants.append(_test(function, body))
    return plants


def _test_names(name: str, draw: Draw, right: int, wrong: int) -> list[str]:
    """Names of tests; those of tests that do not call ``name`` may have it in theirs."""
    names = callers(draw, right + wrong)
    ends = ("twice", "without_items", "in_time", "for_guests")
    made = [f"test_{one}_{draw.choice(ends)}" for one in names]
    for place in range(right, right + wrong, 2):
        made[place] = f"test_{name}_{names[place]}"
    return made


def covering_test(draw: Draw, characters: int) -> Plan:
    """The only test that calls a function; others are only named after it."""
    name, *others = draw.sample(FUNCTIONS, 5)
    names = _test_names(name, draw, 1, _more(characters, 4, 14))
    query = draw.choice(
        (
            "Which test calls the function `{name}`? Answer with the name of the test function.",
            "`{name}` is covered by a single test that really calls it. What is the test function's name?",
        )
    ).format(name=name)
    return Plan(query, names[0], [*_tests(name, others, names, 1, draw), defined(name, "weight", draw)])


def callers_of(draw: Draw, characters: int) -> Plan:
    """All functions that call another one."""
    name, option = draw.choice(FUNCTIONS), draw.choice(OPTIONS)
    right = draw.between(3, 8 if characters > 20_000 else 4)
    names = callers(draw, right + 4)
    plants = [
        caller(function, [call(name, option, draw.between(1, 60), draw)] * draw.between(1, 2), draw)
        for function in names[:right]
    ]
    plants += [mention(function, name, option, draw.between(1, 60), draw) for function in names[right:]]
    query = draw.choice(
        (
            "Which functions call `{name}`? Answer with all their names.",
            "Name every function in whose body `{name}` is called.",
        )
    ).format(name=name)
    return Plan(query, names[:right], [*plants, defined(name, option, draw)])


def tests_of(draw: Draw, characters: int) -> Plan:
    """All tests that call a function."""
    name, *others = draw.sample(FUNCTIONS, 5)
    right = draw.between(3, 8 if characters > 20_000 else 4)
    names = _test_names(name, draw, right, _more(characters, 4, 10))
    query = f"Which tests really call the function `{name}`? Answer with the names of all those test functions."
    return Plan(query, names[:right], [*_tests(name, others, names, right, draw), defined(name, "weight", draw)])


def calls_of(draw: Draw, characters: int) -> Plan:
    """How often a function is called."""
    name, option = draw.choice(FUNCTIONS), draw.choice(OPTIONS)
    functions = draw.between(2, _more(characters, 4, 16))
    names = callers(draw, functions + 3)
    plants, total = [], 0
    for function in names[:functions]:
        times = draw.between(1, 3)
        total += times
        plants.append(caller(function, [call(name, option, draw.between(1, 60), draw) for _ in range(times)], draw))
    plants += [mention(function, name, option, draw.between(1, 60), draw) for function in names[functions:]]
    query = draw.choice(
        (
            "How many calls of `{name}` are there in the code? Remarks and texts that mention it do not count.",
            "In how many places does code call `{name}`? What only mentions it does not count.",
        )
    ).format(name=name)
    return Plan(query, total, [*plants, defined(name, option, draw)])


def count_tests(draw: Draw, characters: int) -> Plan:
    """How many tests call a function."""
    name, *others = draw.sample(FUNCTIONS, 5)
    right = draw.between(2, _more(characters, 5, 18))
    names = _test_names(name, draw, right, _more(characters, 3, 10))
    query = f"How many test functions really call `{name}`?"
    return Plan(query, right, [*_tests(name, others, names, right, draw), defined(name, "weight", draw)])


def more_callers(draw: Draw, characters: int) -> Plan:
    """Which of two functions is called by more functions."""
    pair = draw.sample(FUNCTIONS, 2)
    least = draw.between(1, _more(characters, 2, 8))
    most = least + 2 + draw.below(2)
    counts = draw.shuffled((least, most))
    names = callers(draw, least + most + 4)
    plants, place = [], 0
    for name, count in zip(pair, counts, strict=True):
        for _ in range(count):
            # The one that is called by fewer may be called more often.
            times = 3 if count == least else 1
            plants.append(caller(names[place], [call(name, "weight", draw.between(1, 60), draw)] * times, draw))
            place += 1
    plants += [mention(names[place + n], pair[n % 2], "weight", draw.between(1, 60), draw) for n in range(4)]
    query = f"Which of the two is called by more functions, `{pair[0]}` or `{pair[1]}`? Count each function once."
    return Plan(query, pair[counts.index(most)], [*plants, *(defined(name, "weight", draw) for name in pair)])


FIND = {"find_caller_with": caller_with, "find_test": covering_test}
LIST = {"list_callers": callers_of, "list_tests": tests_of}
COUNT = {"count_calls": calls_of, "count_tests": count_tests}
COMPARE = {"compare_callers": more_callers}
