"""A second look: mended code as it may be run beside the first, without a trace in what the first one made.

Only a cell that stands on its own and cannot do anything but compute is looked at again: it reads the inputs, what it
assigned itself, builtins and a few modules of the standard library, and nothing else. It runs in a namespace of its
own; what it assigned under mended conditions is kept under names that nothing else has.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

from rlm_dspy.signatures.contract import NOTHING, NOTHING_MOST

_FUNCTIONS = frozenset(
    "abs all any bool dict enumerate filter float frozenset int len list map max min print repr reversed round set "
    "sorted str sum tuple zip Counter defaultdict StringIO DictReader reader".split()
)
_METHODS = frozenset(
    "Counter DictReader StringIO casefold count defaultdict endswith find findall finditer format fullmatch get group "
    "groups isdigit items join keys loads lower lstrip match most_common partition reader removeprefix removesuffix "
    "replace rpartition rsplit rstrip search split splitlines startswith strip title upper values".split()
)
_MODULES = frozenset("collections csv io json re".split())
_HARMLESS = (
    *(ast.Assign, ast.Expr, ast.Name, ast.Constant, ast.Load, ast.Store, ast.Call, ast.keyword, ast.Attribute),
    *(ast.Subscript, ast.Slice, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.BinOp, ast.operator, ast.UnaryOp),
    *(ast.unaryop, ast.IfExp, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp),
    *(ast.GeneratorExp, ast.comprehension, ast.JoinedStr, ast.FormattedValue, ast.Lambda, ast.arguments, ast.arg),
    *(ast.Starred, ast.Import, ast.ImportFrom, ast.alias),
)
_LARGE_MAKERS = (ast.Pow, ast.Mult, ast.LShift)
"""Operators by which a few characters of code make a value that no memory holds; products of names come as well."""


def stands_alone(tree: ast.Module, inputs: Collection[str]) -> bool:
    """Whether ``tree`` only computes, from ``inputs`` and what it makes itself: running it again is the same again."""
    known = set(inputs)
    for statement in tree.body:
        if submits(statement):
            continue
        if not _only_computes(statement) or not _reads(statement) <= known | _FUNCTIONS:
            return False
        if isinstance(statement, ast.Assign):
            known |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            known |= {alias.asname or alias.name for alias in statement.names}
    return not (known - set(inputs)) & (set(inputs) | _FUNCTIONS - {"Counter", "defaultdict", "StringIO"})


def beside(
    first: ast.Module, second: ast.Module, inputs: Collection[str], taken: str = ""
) -> tuple[str, str, tuple[str, ...]] | None:
    """``second`` as code to run in a namespace of its own, and the part of it that differs from ``first``.

    Args:
        first: What was run.
        second: The same with other conditions, statement by statement.
        inputs: The variables that it may read.
        taken: All code of the run so far: what it calls by a name is no name for something new.

    Returns:
        The code to run, the part to show, and the names of what it makes; None where it would show nothing, or does
        not stand alone.
    """
    if len(first.body) != len(second.body) or not stands_alone(second, inputs):
        return None
    new: dict[str, str] = {}
    words = set(re.findall(r"\w+", taken)) | {node.id for node in ast.walk(first) if isinstance(node, ast.Name)}
    run: list[ast.stmt] = []
    shown: list[ast.stmt] = []
    for before, after in zip(first.body, second.body, strict=True):
        if submits(after):
            continue
        differs = ast.dump(before) != ast.dump(after) or bool(_reads(after) & new.keys())
        if differs and isinstance(after, ast.Assign):
            for target in after.targets:
                if isinstance(target, ast.Name):
                    new.setdefault(target.id, _free(target.id, words))
        if differs:
            shown.append(after)
        if differs or not isinstance(after, ast.Expr):
            run.append(after)
    inner = {node.arg for each in shown for node in ast.walk(each) if isinstance(node, ast.arg)} | _loop_names(shown)
    if not any(isinstance(statement, ast.Expr) for statement in shown) or inner & new.keys():
        return None
    names = _Renaming(new)
    code, part = (
        ast.unparse(ast.fix_missing_locations(ast.Module([names.visit(each) for each in each_of], [])))
        for each_of in (run, shown)
    )
    return code, part, tuple(new.values())


_APART = """\
import io, re

record = io.StringIO()

def say(*texts, file=None, **how):
    for stream in (record, None) if file is None else (file,):
        print(*texts, file=stream, **how)

space = {**given, 'print': say}
exec(code, space)
said = record.getvalue().rstrip('\\n')
if said and not (len(said) < shortest and re.fullmatch(nothing, said, re.ASCII)):
    for name in names:
        outer.setdefault(name, space.get(name))
"""


def apart(code: str, inputs: Collection[str], names: Collection[str]) -> str:
    """Code that runs ``code`` in a namespace of its own.

    Where it prints something that is more than nothing (`rlm_dspy.signatures.contract.is_nothing`), it hands ``names``
    of that over where nothing else has them; otherwise nothing of it is left.
    """
    given = ", ".join(f"{name!r}: {name}" for name in inputs)
    names_and_code = f"'code': {code!r}, 'names': {list(names)!r}, 'given': {{{given}}}, 'outer': globals()"
    what = f"'nothing': {NOTHING.pattern!r}, 'shortest': {NOTHING_MOST}"
    return f"exec({_APART!r}, {{{names_and_code}, {what}}})\nNone"


def submits(statement: ast.stmt) -> bool:
    """Whether ``statement`` is a call of ``SUBMIT``."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "SUBMIT"


def _reads(statement: ast.stmt) -> set[str]:
    """The names that ``statement`` reads from outside of itself."""
    read = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return read - _loop_names([statement]) - {n.arg for n in ast.walk(statement) if isinstance(n, ast.arg)}


def _loop_names(statements: list[ast.stmt]) -> set[str]:
    loops = (node for each in statements for node in ast.walk(each) if isinstance(node, ast.comprehension))
    return {node.id for loop in loops for node in ast.walk(loop.target) if isinstance(node, ast.Name)}


def _only_computes(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import):
        return all(alias.name in _MODULES for alias in statement.names)
    if isinstance(statement, ast.ImportFrom):
        return statement.module in _MODULES and all(alias.name != "*" for alias in statement.names)
    for node in ast.walk(statement):
        if not isinstance(node, _HARMLESS) or (isinstance(node, ast.BinOp) and _makes_large(node)):
            return False
        if isinstance(node, ast.Assign) and not all(isinstance(target, ast.Name) for target in node.targets):
            return False
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name):
                harmless = function.id in _FUNCTIONS
            else:
                harmless = isinstance(function, ast.Attribute) and function.attr in _METHODS
            if not harmless:
                return False
    return True


def _makes_large(node: ast.BinOp) -> bool:
    constants = [side for side in (node.left, node.right) if isinstance(side, ast.Constant)]
    return isinstance(node.op, _LARGE_MAKERS) and (not isinstance(node.op, ast.Mult) or bool(constants))


def _free(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """A variable that is assigned anew, under its new name."""
        return ast.Name(self._names.get(node.id, node.id), node.ctx)
