"""Code whose conditions rule everything out, or are not the task's, with the conditions mended.

A small model that is told why its code found nothing often sends the same code again. What is mended is only what the
data decide: a value is asked for in the field where it stands and as it is spelled there; a text that stands nowhere,
and a condition that the task does not name, is left out. A true "none" is mended too, which nothing in the data tells
apart: what is mended never takes the place of what was found, it stands beside it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from rlm_dspy.first_look import field_names, form
from rlm_dspy.passages import SEARCHED, having
from rlm_dspy.places import Place, find
from rlm_dspy.signatures.contract import Form
from rlm_dspy.signatures.dialect import parse
from rlm_dspy.words import named, spelled

LONGEST = 10_000
"""Characters of code that is looked through."""

CONDITIONS = 8
"""Conditions of one piece of code that are looked up in the data."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def mended(
    code: str, text: str, task: str, words: Mapping[str, int], plain: bool = True
) -> ast.Module | None:
    """``code`` with the conditions of its comprehensions mended, None where there is nothing to mend.

    Args:
        code: What found nothing.
        text: The data that it was run over.
        task: What is asked.
        words: The telling words of ``task`` in ``text``.
        plain: Keep plain words of the language; off, they are left out, since they mostly stand in the data by chance.
    """
    mending = _mend(code, text, task, words, plain=plain)
    if mending is not None and not mending.changed and (term := _conflict(mending.kept, text, mending.form)):
        mending = _mend(code, text, task, words, leave_out=term)
    if mending is None or not mending.changed or not mending.kept:
        # Code that is left without any condition looks for nothing.
        return None
    return mending.tree


def tightened(code: str, text: str, task: str, words: Mapping[str, int]) -> tuple[str, list[tuple[str, str]]]:
    """``code`` that asks whether a line has a word, asking for it in the token in which it nearly always stands.

    ``'502' in line`` finds numbers that have it in them; ``'status=502' in line`` does not.

    Returns:
        The code and the pairs of what was and is asked for; ``""`` and none without such a word.
    """
    tightening = _mend(code, text, task, words, tighten=True)
    if tightening is None or not tightening.tight:
        return "", []
    return ast.unparse(tightening.tree), tightening.tight


def _mend(
    code: str,
    text: str,
    task: str,
    words: Mapping[str, int],
    leave_out: str = "",
    tighten: bool = False,
    plain: bool = True,
) -> _Mending | None:
    tree = parse(code) if len(code) <= LONGEST and len(text) <= SEARCHED else None
    if not isinstance(tree, ast.Module):
        return None
    mending = _Mending(text, task, words, leave_out, tighten, plain, folds=any(map(_folds, ast.walk(tree))))
    try:
        mending.tree = ast.fix_missing_locations(mending.visit(tree))
    except RecursionError:
        return None
    return mending if mending.looked_up <= CONDITIONS else None


def _folds(node: ast.AST) -> bool:
    """Whether ``node`` is a sign that capitals do not count in the code."""
    return isinstance(node, ast.Attribute) and node.attr in ("lower", "upper", "casefold", "IGNORECASE", "I")


def _conflict(terms: list[str], text: str, kind: Form) -> str:
    """The last of ``terms`` without which some line has all the others, where no line has all; else ``""``."""
    listed = list(dict.fromkeys(terms))
    if len(listed) < 2 or having(text, listed, kind):
        return ""
    rest = {term: len(having(text, [other for other in listed if other != term], kind)) for term in listed}
    best = max(listed, key=lambda term: rest[term])
    return best if rest[best] else ""


class _Mending(ast.NodeTransformer):
    """Mends the conditions of comprehensions over lines or rows; what is no condition on a text stays as it is."""

    def __init__(
        self,
        text: str,
        task: str,
        words: Mapping[str, int],
        leave_out: str,
        tighten: bool,
        plain: bool,
        folds: bool,
    ) -> None:
        self._text, self._task, self._words = text, task, words
        self._leave_out, self._tighten, self._plain, self._folds = leave_out, tighten, plain, folds
        self._fields = frozenset(field_names(text))
        self.form = form(text)
        self.tree = ast.Module([], [])
        self.changed = False
        self.kept: list[str] = []
        self.tight: list[tuple[str, str]] = []
        self.looked_up = 0

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        """Its conditions, those that are joined by ``and`` one by one."""
        row = node.target.id if isinstance(node.target, ast.Name) else ""
        leaves = [leaf for test in node.ifs for leaf in _leaves(test)]
        conditions = [mended for leaf in leaves if (mended := self._mend(leaf, row)) is not None]
        node.ifs = [ast.BoolOp(ast.And(), conditions)] if len(conditions) > 1 else conditions
        self.generic_visit(node)
        return node

    def _mend(self, leaf: ast.expr, row: str) -> ast.expr | None:
        """A condition as it is meant, None if it is to be left out."""
        asked = _asked(leaf)
        if asked is None:
            return leaf
        value, subject, build = asked
        if not value.strip() or value in self._fields or not row or _base(subject) != row:
            return leaf
        self.looked_up += 1
        if self.looked_up > CONDITIONS:
            return leaf
        if self._tighten:
            return self._tightened(leaf, value, subject, build)
        right = spelled(value, self._text)
        strange = not right or not named(right, self._task)
        if strange and (meant := self._meant(subject, right)):
            self.changed = True
            self.kept.append(meant)
            return build(meant)
        chance = not self._plain and right.isalpha() and right.islower()
        if not right or right == self._leave_out or chance or strange:
            self.changed = True
            return None
        self.kept.append(right)
        return self._placed(leaf, value, right, subject, build)

    def _placed(
        self, leaf: ast.expr, value: str, right: str, subject: ast.expr, build: Callable[[str], ast.expr]
    ) -> ast.expr:
        """The condition on the field in which the value stands, as it is spelled there."""
        path = _path(subject)
        place = find(self._text, right, self.form) if path else None
        if place is not None and place.path and not _agrees(path, place):
            self.changed = True
            return _condition(_at(subject, place), right, place)
        if right != value and not self._folds:
            self.changed = True
            return build(right)
        number = place is not None and place.how == "number" and isinstance(leaf, ast.Compare)
        if place is not None and number and _NUMBER.fullmatch(right):
            self.changed = True
            return _condition(subject, right, place)
        return leaf

    def _tightened(
        self, leaf: ast.expr, value: str, subject: ast.expr, build: Callable[[str], ast.expr]
    ) -> ast.expr:
        whole_line = isinstance(leaf, ast.Compare) and isinstance(leaf.ops[0], ast.In) and isinstance(subject, ast.Name)
        place = find(self._text, value, self.form) if whole_line and value.isalnum() else None
        if place is None:
            return leaf
        if place.unit == "token" and value in place.token:
            self.tight.append((value, place.token))
            return build(place.token)
        if place.unit == "word" and any(map(str.isdigit, value)):
            self.tight.append((value, f" {value} "))
            return build(f" {value} ")
        return leaf

    def _meant(self, subject: ast.expr, value: str) -> str:
        """The word of the task that stands in the same field, where the code asks for another value of it, or for none
        that there is (``value`` is ``""``)."""
        path = _path(subject)
        place = find(self._text, value, self.form) if value else None
        if not path or (value and (place is None or place.path != path)):
            return ""
        for word in self._words:
            theirs = find(self._text, word, self.form)
            if theirs is not None and theirs.path == path and theirs.how == (place.how if place else "whole"):
                return word
        return ""


def _leaves(test: ast.expr) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [leaf for value in test.values for leaf in _leaves(value)]
    return [test]


def _asked(leaf: ast.expr) -> tuple[str, ast.expr, Callable[[str], ast.expr]] | None:
    """The text that a condition asks for, what it asks for it, and how the same is asked for another text."""
    if isinstance(leaf, ast.Compare) and len(leaf.ops) == 1 and isinstance(leaf.ops[0], (ast.Eq, ast.In)):
        op, left, right = leaf.ops[0], leaf.left, leaf.comparators[0]
        if isinstance(left, ast.Constant) and isinstance(left.value, str):
            return left.value, right, lambda value: ast.Compare(ast.Constant(value), [op], [right])
        if isinstance(right, ast.Constant) and isinstance(right.value, str) and isinstance(op, ast.Eq):
            return right.value, left, lambda value: ast.Compare(left, [op], [ast.Constant(value)])
    if isinstance(leaf, ast.Call) and isinstance(leaf.func, ast.Attribute) and leaf.func.attr == "startswith":
        function = leaf.func
        if len(leaf.args) == 1 and isinstance(leaf.args[0], ast.Constant) and isinstance(leaf.args[0].value, str):
            return leaf.args[0].value, function.value, lambda value: ast.Call(function, [ast.Constant(value)], [])
    return None


_SAME = ("lower", "upper", "casefold", "strip")


def _step(subject: ast.expr) -> tuple[ast.expr, str | int | None] | None:
    """What ``subject`` reads a field of, and the field; None for a method that leaves the value what it is."""
    if isinstance(subject, ast.Call) and isinstance(subject.func, ast.Attribute) and subject.func.attr in _SAME:
        return subject.func.value, None
    key: object = None
    if isinstance(subject, ast.Subscript) and isinstance(subject.slice, ast.Constant):
        row, key = subject.value, subject.slice.value
    elif isinstance(subject, ast.Call) and isinstance(subject.func, ast.Attribute) and subject.func.attr == "get":
        row, key = subject.func.value, getattr(next(iter(subject.args), None), "value", None)
    return (row, key) if isinstance(key, (str, int)) else None


def _base(subject: ast.expr) -> str:
    """The variable that ``subject`` reads, ``""`` if it is more than fields of one."""
    while (read := _step(subject)) is not None:
        subject, _ = read
    return subject.id if isinstance(subject, ast.Name) else ""


def _path(subject: ast.expr) -> tuple[str | int, ...]:
    """The keys that ``row['a']['b']``, ``row[3]`` or ``row.get('a')`` reads a field by; none for a whole row."""
    keys: list[str | int] = []
    while (read := _step(subject)) is not None:
        subject, key = read
        keys[:0] = [] if key is None else [key]
    return tuple(keys)


def _agrees(path: tuple[str | int, ...], place: Place) -> bool:
    return path == place.path or (len(path) == 1 and isinstance(path[0], int) and path[0] < 0)


def _at(subject: ast.expr, place: Place) -> ast.expr:
    """The field of ``place``, of the row that ``subject`` reads."""
    while (read := _step(subject)) is not None:
        subject, _ = read
    for key in place.path:
        subject = ast.Subscript(subject, ast.Constant(key), ast.Load())
    return subject


def _condition(subject: ast.expr, value: str, place: Place) -> ast.expr:
    """That ``subject`` is ``value``, or has it in it, as is said by ``place``."""
    if place.how == "number" and _NUMBER.fullmatch(value):
        return ast.Compare(subject, [ast.Eq()], [ast.Constant(float(value) if "." in value else int(value))])
    if place.how == "whole":
        return ast.Compare(subject, [ast.Eq()], [ast.Constant(value)])
    return ast.Compare(ast.Constant(value), [ast.In()], [ast.Call(ast.Name("str", ast.Load()), [subject], [])])
