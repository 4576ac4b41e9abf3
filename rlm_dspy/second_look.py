"""A second look: mended code as it may be run beside the first, without a trace in what the first one made.

Only code that cannot do anything but compute is run a second time: assignments of names, comprehensions, ``print``, and
calls from a list of functions and methods without effects. What it assigns gets names of its own, so that every
variable stays what the root's own code made of it.
"""

from __future__ import annotations

import ast

_FUNCTIONS = frozenset(
    "abs all any bool dict enumerate filter float frozenset int len list map max min print range repr reversed round "
    "set sorted str sum tuple zip Counter defaultdict StringIO DictReader reader".split()
)
_METHODS = frozenset(
    "Counter DictReader StringIO casefold count defaultdict endswith find findall finditer format fullmatch get group "
    "groups isdigit items join keys loads lower lstrip match most_common partition reader removeprefix removesuffix "
    "replace rpartition rsplit rstrip search split splitlines startswith strip title upper values".split()
)
_HARMLESS = (
    *(ast.Assign, ast.Expr, ast.Name, ast.Constant, ast.Load, ast.Store, ast.Call, ast.keyword, ast.Attribute),
    *(ast.Subscript, ast.Slice, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.BinOp, ast.operator, ast.UnaryOp),
    *(ast.unaryop, ast.IfExp, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp),
    *(ast.GeneratorExp, ast.comprehension, ast.JoinedStr, ast.FormattedValue, ast.Lambda, ast.arguments, ast.arg),
    ast.Starred,
)


def beside(first: ast.Module, second: ast.Module) -> tuple[str, tuple[str, ...]] | None:
    """The part of ``second`` that differs from ``first``, with names of its own, and these names.

    Args:
        first: What was run.
        second: The same with other conditions, statement by statement.

    Returns:
        None where that would show nothing, or might do more than compute.
    """
    if len(first.body) != len(second.body):
        return None
    taken = {node.id for node in ast.walk(first) if isinstance(node, ast.Name)}
    new: dict[str, str] = {}
    kept: list[ast.stmt] = []
    for before, after in zip(first.body, second.body, strict=True):
        if isinstance(after, (ast.Import, ast.ImportFrom)) or _submits(after):
            continue
        differs = ast.dump(before) != ast.dump(after) or any(
            isinstance(node, ast.Name) and node.id in new for node in ast.walk(after)
        )
        if not differs:
            continue
        if not _only_computes(after):
            return None
        if isinstance(after, ast.Assign):
            for target in after.targets:
                assert isinstance(target, ast.Name)
                new.setdefault(target.id, _free(target.id, taken))
        kept.append(after)
    shows = any(isinstance(statement, ast.Expr) for statement in kept)
    bound = {arg.arg for each in kept for arg in ast.walk(each) if isinstance(arg, ast.arg)}
    bound |= {
        node.id for each in kept for inner in ast.walk(each) if isinstance(inner, ast.comprehension)
        for node in ast.walk(inner.target) if isinstance(node, ast.Name)
    }  # fmt: skip
    if not shows or bound & new.keys():
        return None
    renamed = [_Renaming(new).visit(statement) for statement in kept]
    return ast.unparse(ast.fix_missing_locations(ast.Module(renamed, []))), tuple(new.values())


def _submits(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "SUBMIT"


def _only_computes(statement: ast.stmt) -> bool:
    for node in ast.walk(statement):
        if not isinstance(node, _HARMLESS):
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
