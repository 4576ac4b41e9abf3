"""Code whose conditions rule everything out, or are not the task's, with the conditions mended.

A small model that is told why its code found nothing often sends the same code again. What is mended is only what the
data decide: a value is asked for in the field where it stands and as it is spelled there; a text that stands nowhere,
and a condition that the task does not name, is left out. A true "none" is mended too, which nothing in the data tells
apart: what is mended never takes the place of what was found, it stands beside it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping

from rlm_dspy import columns
from rlm_dspy.data import Data
from rlm_dspy.fields import Path, at, base, path
from rlm_dspy.passages import SEARCHED, having
from rlm_dspy.places import Place, find
from rlm_dspy.signatures.dialect import parse
from rlm_dspy.words import is_plain, named, spelled

LONGEST = 10_000
"""Characters of code that is looked through."""

CONDITIONS = 8
"""Conditions of one piece of code that are looked up in the data."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def mended(
    code: str, data: Data, task: str, words: Mapping[str, int], plain: bool = True
) -> ast.Module | None:
    """``code`` with the conditions of its comprehensions mended, None where there is nothing to mend.

    Args:
        code: What found nothing.
        data: What it was run over.
        task: What is asked.
        words: The telling words of ``task`` in ``data``.
        plain: Keep plain words of the language; off, they are left out, since they mostly stand in the data by chance.
    """
    mending = _mend(code, data, task, words, plain=plain)
    if mending is not None and not mending.changed and (term := _conflict(mending.kept, data)):
        mending = _mend(code, data, task, words, leave_out=term)
    if mending is None or not mending.changed or not mending.kept:
        # Code that is left without any condition looks for nothing.
        return None
    return mending.tree


def tightened(code: str, data: Data, task: str, words: Mapping[str, int]) -> tuple[str, list[tuple[str, str]]]:
    """``code`` that asks whether a line has a word, asking for it in the token in which it nearly always stands.

    ``'502' in line`` finds numbers that have it in them; ``'status=502' in line`` does not.

    Returns:
        The code and the pairs of what was and is asked for; ``""`` and none without such a word.
    """
    tightening = _mend(code, data, task, words, tighten=True)
    if tightening is None or not tightening.tight:
        return "", []
    return ast.unparse(tightening.tree), tightening.tight


def _mend(
    code: str,
    data: Data,
    task: str,
    words: Mapping[str, int],
    leave_out: str = "",
    tighten: bool = False,
    plain: bool = True,
) -> _Mending | None:
    tree = parse(code) if len(code) <= LONGEST and len(data.text) <= SEARCHED else None
    if not isinstance(tree, ast.Module):
        return None
    mending = _Mending(data, task, words, leave_out, tighten, plain, folds=any(map(_folds, ast.walk(tree))))
    try:
        mending.tree = ast.fix_missing_locations(mending.visit(tree))
    except RecursionError:
        return None
    return mending if mending.looked_up <= CONDITIONS else None


def _folds(node: ast.AST) -> bool:
    """Whether ``node`` is a sign that capitals do not count in the code."""
    return isinstance(node, ast.Attribute) and node.attr in ("lower", "upper", "casefold", "IGNORECASE", "I")


def _conflict(terms: list[str], data: Data) -> str:
    """The last of ``terms`` without which some line has all the others, where no line has all; else ``""``."""
    text, kind = data.text, data.form
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
        data: Data,
        task: str,
        words: Mapping[str, int],
        leave_out: str,
        tighten: bool,
        plain: bool,
        folds: bool,
    ) -> None:
        self._data, self._text, self._task, self._words = data, data.text, task, words
        self._leave_out, self._tighten, self._plain, self._folds = leave_out, tighten, plain, folds
        self._fields = frozenset(data.fields)
        self._rows = data.rows is not None
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
        asked = _asked(leaf) or (_asked_number(leaf) if self._rows else None)
        if asked is None:
            return leaf
        value, subject, build = asked
        if not value.strip() or value in self._fields or not row or base(subject) != row:
            return leaf
        self.looked_up += 1
        if self.looked_up > CONDITIONS:
            return leaf
        if self._tighten:
            return self._tightened(leaf, value, subject, build)
        if (typed := self._typed(leaf, subject)) is not None:
            self.changed = True
            self.kept.append(value)
            return typed
        right = spelled(value, self._text)
        strange = not right or not named(right, self._task)
        if strange and (meant := self._meant(subject, right)):
            self.changed = True
            self.kept.append(meant)
            return build(meant)
        chance = not self._plain and is_plain(right)
        if not right or right == self._leave_out or chance or strange:
            self.changed = True
            return None
        self.kept.append(right)
        return self._placed(leaf, value, right, subject, build)

    def _placed(
        self, leaf: ast.expr, value: str, right: str, subject: ast.expr, build: Callable[[str], ast.expr]
    ) -> ast.expr:
        """The condition on the field in which the value stands, as it is spelled there."""
        keys = path(subject)
        # The keys of a record are all that a condition on the whole of it looks at.
        whole = self._rows and not keys and isinstance(leaf, ast.Compare)
        place = find(self._data, right) if keys or whole else None
        if place is not None and place.path and not _agrees(keys, place):
            self.changed = True
            return _condition(at(subject, place.path), right, place)
        if whole:
            self.changed = True
            return ast.Compare(ast.Constant(right), [ast.In()], [ast.Call(ast.Name("str", ast.Load()), [subject], [])])
        if isinstance(leaf, ast.Compare) and _asked(leaf) is None:
            return leaf
        if right != value and not self._folds:
            self.changed = True
            return build(right)
        number = place is not None and place.how == "number" and isinstance(leaf, ast.Compare)
        if place is not None and number and _NUMBER.fullmatch(right):
            self.changed = True
            return _condition(subject, right, place)
        return leaf

    def _typed(self, leaf: ast.expr, subject: ast.expr) -> ast.expr | None:
        """A condition that a field of a record equals a number where it is a text, or the other way round."""
        keys = path(subject)
        if not self._rows or len(keys) != 1 or not isinstance(leaf, ast.Compare) or not isinstance(leaf.ops[0], ast.Eq):
            return None
        given = next(side for side in (leaf.left, *leaf.comparators) if isinstance(side, ast.Constant))
        meant = columns.other_type(self._data, str(keys[0]), given.value)
        return None if meant is None else ast.Compare(subject, leaf.ops, [ast.Constant(meant)])

    def _tightened(
        self, leaf: ast.expr, value: str, subject: ast.expr, build: Callable[[str], ast.expr]
    ) -> ast.expr:
        whole_line = isinstance(leaf, ast.Compare) and isinstance(leaf.ops[0], ast.In) and isinstance(subject, ast.Name)
        place = find(self._data, value) if whole_line and value.isalnum() else None
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
        keys = path(subject)
        place = find(self._data, value) if value else None
        if not keys or (value and (place is None or place.path != keys)):
            return ""
        for word in self._words:
            theirs = find(self._data, word)
            if theirs is not None and theirs.path == keys and theirs.how == (place.how if place else "whole"):
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


def _asked_number(leaf: ast.expr) -> tuple[str, ast.expr, Callable[[str], ast.expr]] | None:
    """As `_asked`, of a condition that a field equals a number, which nothing does where its values are texts."""
    if not (isinstance(leaf, ast.Compare) and len(leaf.ops) == 1 and isinstance(leaf.ops[0], ast.Eq)):
        return None
    for number, subject in ((leaf.left, leaf.comparators[0]), (leaf.comparators[0], leaf.left)):
        value = number.value if isinstance(number, ast.Constant) else None
        if type(value) in (int, float) and path(subject):
            return str(value), subject, functools.partial(_equals, subject)
    return None


def _equals(subject: ast.expr, value: str) -> ast.expr:
    return ast.Compare(subject, [ast.Eq()], [ast.Constant(value)])


def numbers_asked(code: str) -> list[tuple[str, Path]]:
    """The numbers that conditions of ``code`` ask fields for, as text, and the keys of the fields."""
    tree = parse(code) if len(code) <= LONGEST else None
    asked = (_asked_number(node) for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.expr))
    return [(found[0], path(found[1])) for found in asked if found is not None]


def _agrees(keys: Path, place: Place) -> bool:
    return keys == place.path or (len(keys) == 1 and isinstance(keys[0], int) and keys[0] < 0)


def _condition(subject: ast.expr, value: str, place: Place) -> ast.expr:
    """That ``subject`` is ``value``, or has it in it, as is said by ``place``."""
    if place.how == "number" and _NUMBER.fullmatch(value):
        return ast.Compare(subject, [ast.Eq()], [ast.Constant(float(value) if "." in value else int(value))])
    if place.how == "whole":
        return ast.Compare(subject, [ast.Eq()], [ast.Constant(value)])
    return ast.Compare(ast.Constant(value), [ast.In()], [ast.Call(ast.Name("str", ast.Load()), [subject], [])])
