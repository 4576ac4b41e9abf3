"""Code whose conditions rule everything out, or are not the task's, with the conditions mended.

A small model that is told why its code found nothing often sends the same code again; shown the code that it meant, it
runs it. What is mended is only what the data decide: a value is asked for in the field where it stands and as it is
spelled there; a text that stands nowhere, and a condition that the task does not name, is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from rlm_dspy.first_look import field_names, form
from rlm_dspy.passages import SEARCHED, having
from rlm_dspy.places import Place, find
from rlm_dspy.signatures.contract import Form
from rlm_dspy.words import named, spelled

_LONGEST = 10_000


def tightened(code: str, text: str, task: str, words: Mapping[str, int]) -> str:
    """``code`` that asks whether a line has a word, asking for it in the token in which it nearly always stands.

    ``'502' in line`` finds numbers that have it in them; ``'status=502' in line`` does not. ``""`` without such a word.
    """
    if len(text) > SEARCHED or len(code) > _LONGEST:
        return ""
    try:
        tightening = _Mending(text, task, words, tighten=True)
        tree = tightening.visit(ast.parse(code))
        return ast.unparse(ast.fix_missing_locations(tree)) if tightening.tight else ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def repaired(code: str, text: str, task: str, words: Mapping[str, int]) -> str:
    """``code`` with its conditions mended and without calls of ``SUBMIT``, ``""`` where there is nothing to mend.

    Args:
        code: What found nothing.
        text: The data that it was run over.
        task: What is asked.
        words: The telling words of ``task`` in ``text``.
    """
    if len(text) > SEARCHED or len(code) > _LONGEST:
        return ""
    try:
        tree = ast.parse(code)
        mending = _Mending(text, task, words)
        mended = mending.visit(tree)
        if mending.kept and mending.changed is False and (rules_out := _conflict(mending.kept, text, mending.form)):
            mending = _Mending(text, task, words, leave_out=rules_out)
            mended = mending.visit(ast.parse(code))
        if not mending.changed or (mending.nowhere and not mending.kept):
            # Code that is left without any condition looks for nothing.
            return ""
        return ast.unparse(ast.fix_missing_locations(mended))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def _conflict(terms: list[str], text: str, kind: Form) -> str:
    """The last of ``terms`` without which some line has all the others, where no line has all; else ``""``."""
    listed = list(dict.fromkeys(terms))
    if len(listed) < 2 or having(text, listed, kind):
        return ""
    rest = {term: len(having(text, [other for other in listed if other != term], kind)) for term in listed}
    best = max(listed, key=lambda term: rest[term])
    return best if rest[best] else ""


class _Mending(ast.NodeTransformer):
    """Mends the conditions of comprehensions and of ``if``; what is no condition on a text stays as it is."""

    def __init__(
        self, text: str, task: str, words: Mapping[str, int], leave_out: str = "", tighten: bool = False
    ) -> None:
        self._words = words
        self._text, self._task, self._leave_out, self._tighten = text, task, leave_out, tighten
        self.form = form(text)
        self._fields = frozenset(field_names(text))
        self.changed = False
        self.kept: list[str] = []
        self.nowhere = False
        self.tight: list[tuple[str, str]] = []

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """A call of ``SUBMIT`` goes: what is found is to be seen first."""
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "SUBMIT":
            return ast.Pass()
        self.generic_visit(node)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        """Its conditions, those that are joined by ``and`` one by one."""
        conditions = [leaf for test in node.ifs for leaf in _leaves(test)]
        node.ifs = _joined([mended for leaf in conditions if (mended := self._mend(leaf)) is not None])
        self.generic_visit(node)
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        """Its test; one that nothing would be left of stays."""
        mended = [each for leaf in _leaves(node.test) if (each := self._mend(leaf)) is not None]
        if mended:
            (node.test,) = _joined(mended)
        self.generic_visit(node)
        return node

    def _mend(self, leaf: ast.expr) -> ast.expr | None:
        """A condition as it is meant, None if it is to be left out."""
        asked = _asked(leaf)
        if asked is None:
            return leaf
        value, subject, build = asked
        if not value.strip() or value in self._fields:
            return leaf
        if self._tighten:
            return self._tightened(leaf, value, subject, build)
        right = spelled(value, self._text)
        if right and not named(right, self._task) and (meant := self._meant(subject, right)):
            self.changed = True
            self.kept.append(meant)
            return build(meant)
        if not right or right == self._leave_out or not named(right, self._task):
            self.changed = True
            self.nowhere = self.nowhere or not right
            return None
        self.kept.append(right)
        path = _path(subject)
        place = find(self._text, right, self.form) if path else None
        if place is not None and place.path and not _agrees(path, place):
            self.changed = True
            return _condition(_at(subject, place), right, place)
        if right != value and not _folds(subject):
            self.changed = True
            return build(right)
        if place is not None and place.how == "number" and isinstance(leaf, ast.Compare):
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
        """The word of the task that stands in the same field, where the code asks for another value of it."""
        path, place = _path(subject), find(self._text, value, self.form)
        if not path or place is None or not place.path or not _agrees(path, place):
            return ""
        for word in self._words:
            if find(self._text, word, self.form) == place:
                return word
        return ""


def _joined(conditions: list[ast.expr]) -> list[ast.expr]:
    return [ast.BoolOp(ast.And(), conditions)] if len(conditions) > 1 else conditions


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
        function, (given, *rest) = leaf.func, (*leaf.args, None)
        if isinstance(given, ast.Constant) and isinstance(given.value, str) and rest:
            return given.value, function.value, lambda value: ast.Call(function, [ast.Constant(value)], [])
    return None


def _path(subject: ast.expr) -> tuple[str | int, ...]:
    """The keys that ``row['a']['b']``, ``row[3]`` or ``row.get('a')`` reads a field by; none for anything else."""
    keys: list[str | int] = []
    while not isinstance(subject, ast.Name):
        read = _step(subject)
        if read is None:
            return ()
        subject, key = read
        keys[:0] = [] if key is None else [key]
    return tuple(keys)


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


def _folds(subject: ast.expr) -> bool:
    """Whether capitals do not count in what ``subject`` reads."""
    calls = (node for node in ast.walk(subject) if isinstance(node, ast.Attribute))
    return any(call.attr in ("lower", "upper", "casefold") for call in calls)


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
    if place.how == "number":
        number = ast.parse(value, mode="eval").body
        return ast.Compare(subject, [ast.Eq()], [number])
    if place.how == "whole":
        return ast.Compare(subject, [ast.Eq()], [ast.Constant(value)])
    return ast.Compare(ast.Constant(value), [ast.In()], [subject])
