"""A second way to the answers about a repository: its Python is parsed, all else is read line by line.

Standard library alone, so that an oracle can send this file into a sandbox.
"""

from __future__ import annotations

import ast
import re

COMMENTS = {"py": "#", "sh": "#", "yaml": "#", "ts": "//", "go": "//", "sql": "--"}


def suffix(path):
    return path.rpartition(".")[2]


def functions(text):
    """The functions of a Python file with the constants of its module."""
    tree = ast.parse(text)
    constants = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            constants[node.targets[0].id] = node.value.value
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)], constants


def calls(function, name):
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


def callers(files, name, tests):
    """Functions that call ``name``, with their calls and the constants beside them."""
    found = []
    for path, text in files.items():
        if suffix(path) == "py" and path.startswith("tests/") == tests and name in text:
            all_of_file, constants = functions(text)
            found += [(one.name, here, constants) for one in all_of_file if (here := calls(one, name))]
    return found


def argument(node, option, constants):
    for keyword in node.keywords:
        if keyword.arg == option:
            value = keyword.value
            return constants.get(value.id) if isinstance(value, ast.Name) else value.value


def code_lines(path, text):
    """Lines without remarks."""
    mark = COMMENTS.get(suffix(path))
    return [line for line in text.splitlines() if mark and not line.strip().startswith(mark)]


def sections(text):
    """A settings file as service to key to value."""
    found, here = {}, None
    for line in text.splitlines():
        if line.strip().startswith("#") or not line.strip():
            continue
        key, _, value = line.strip().partition(":")
        if line[0] != " ":
            here = found.setdefault(key, {})
        else:
            here[key] = int(value)
    return found


def in_force(files, service, key, region):
    value = None
    for path in ("config/base.yaml", "config/production.yaml", f"config/production-{region}.yaml"):
        value = sections(files[path]).get(service, {}).get(key, value)
    return value


def defining(files, path, name):
    """Where the constant that a file imports, or has, gets its value."""
    for node in ast.parse(files[path]).body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            target = node.module.replace(".", "/")
            return defining(files, target + ".py" if target + ".py" in files else target + "/__init__.py", name)
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return path


READS = {"py": r'os\.environ\["{}"\]', "ts": r"process\.env\.{}\b", "go": r'os\.Getenv\("{}"\)', "sh": r"\$\{{{}\}}"}


def reads(path, text, name):
    pattern = READS.get(suffix(path))
    return bool(pattern) and any(re.search(pattern.format(name), line) for line in code_lines(path, text))


def remarks(files, owner):
    return sum(len(re.findall(rf"TODO\({owner}\)", text)) for text in files.values())


def solve(files, query, template):
    """The answer to a question of this template."""
    quoted = re.findall(r"`([^`]+)`", query)
    region = re.search(r"region (\w+-\w+)", query)
    if template == "find_caller_with":
        name, option = (part for part in sorted(quoted, key=lambda part: "_" not in part))
        value = int(re.search(r"\b(\d+)\b", query)[1])
        (found,) = [
            function
            for function, here, constants in callers(files, name, False)
            if any(argument(node, option, constants) == value for node in here)
        ]
        return found
    if template in ("list_callers", "list_tests", "find_test", "count_tests"):
        found = [function for function, _, _ in callers(files, quoted[0], template != "list_callers")]
        if template == "count_tests":
            return len(found)
        return found[0] if template == "find_test" and len(found) == 1 else sorted(found)
    if template == "count_calls":
        return sum(len(here) for _, here, _ in callers(files, quoted[0], False))
    if template == "compare_callers":
        return max(quoted, key=lambda name: len(callers(files, name, False)))
    if template == "find_setting":
        key, service = sorted(quoted, key=lambda part: "_" not in part)
        return str(in_force(files, service, key, region[1]))
    if template == "compare_settings":
        key, *services = quoted
        return max(services, key=lambda service: in_force(files, service, key, region[1]))
    if template == "list_overrides":
        key, service = quoted
        settings = {path: sections(text) for path, text in files.items() if suffix(path) == "yaml"}
        return sorted(path for path, services in settings.items() if key in services.get(service, {}))
    if template == "find_constant":
        path, name = sorted(quoted, key=lambda part: "/" not in part)
        return defining(files, path, name)
    if template == "list_readers":
        return sorted(path for path, text in files.items() if reads(path, text, quoted[0]))
    if template == "count_remarks":
        owner = re.search(r"TODO\((\w+)\)|remarks are there for (\w+)", query)
        return remarks(files, owner[1] or owner[2])
    first, second = re.search(r"(\w+) or (\w+)\?", query).groups()
    assert template == "compare_remarks" and remarks(files, first) != remarks(files, second)
    return max((first, second), key=lambda owner: remarks(files, owner))
