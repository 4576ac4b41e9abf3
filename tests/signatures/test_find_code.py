"""Taking code out of whatever a model wrote."""

from __future__ import annotations

import ast
import json
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy.signatures import find_code

# Statements with all that makes a reader of fences stumble: fences, quotes and markers in strings and comments.
STATEMENTS = [
    "x = 1",
    "print(f'{len(context):,} ``` {1}')",
    'doc = """\n```python\nprint("inner")\n```\n"""',
    "doc = '''\n~~~\n```\n   ```json\n{}\n```\n'''",
    "r = r'''\\\n```\n'''",
    "for i in range(3):\n    if i:\n        print(i)",
    "# it's a comment with ``` and ''' in it",
    "s = 'it\\'s ``` here'",
    's = "[[ ## code ## ]]"',
    "t = '''\n[[ ## code ## ]]\n'''",
    "answer = await llm_query('x')",
    "class A:\n    '''Doc.'''\n    def f(self):\n        return \"\"\"\n```\n\"\"\"",
    "u = 'a\u2028b\x0cc\x1dd\x85e'",
    "v = ('a'\n     'b')",
    "{'code': 1}",
]
PROSE = ["I look at the data first.", "Let's see: it's `x`.", "", "1. Plan\n2. Do", "Use ``` sparingly, e.g. `a`."]
programs = st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=6).map("\n".join)
fences = st.sampled_from(["```", "~~~", "````", "`````"])
labels = st.sampled_from(["python", "py", "Python", "python3", "repl", "{.python}", "python title=x", "tool_code"])


def tree(code: str) -> ast.AST:
    """What Python reads, top-level ``await`` included."""
    return compile(code, "c", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def same(found: str, code: str) -> None:
    """The same program: Python reads both as the same tree, strings and all."""
    assert ast.dump(tree(found)) == ast.dump(tree(code))


@given(programs, st.sampled_from(PROSE), st.sampled_from(PROSE), fences, labels, st.booleans())
@settings(deadline=None, max_examples=300)
def test_any_program_comes_back_out_of_prose_and_fence(
    program: str, before: str, after: str, fence: str, label: str, crlf: bool
) -> None:
    text = f"{before}\n\n{fence}{label}\n{program}\n{fence}\n{after}"
    found = find_code(text.replace("\n", "\r\n") if crlf else text)
    same(found.code, program)
    if not crlf:
        assert found.code == program
        assert found.reasoning.split() == f"{before} {after}".split()


@given(programs, fences, labels)
@settings(deadline=None, max_examples=150)
def test_a_block_that_never_closes_is_code_to_the_end(program: str, fence: str, label: str) -> None:
    assert find_code(f"plan\n{fence}{label}\n{program}").code == program


@given(programs, programs, st.sampled_from(PROSE))
@settings(deadline=None, max_examples=150)
def test_several_blocks_are_one_program_in_order(first: str, second: str, between: str) -> None:
    found = find_code(f"```python\n{first}\n```\n{between}\n```python\n{second}\n```")
    assert found.code == f"{first}\n\n{second}"


@given(programs, st.integers(1, 8))
@settings(deadline=None, max_examples=150)
def test_an_indented_fence_is_dedented_as_a_whole(program: str, width: int) -> None:
    block = textwrap.indent(f"```python\n{program}\n```", " " * width, lambda line: True)
    found = find_code(f"1. first do this\n{block}\n2. done")
    if "\n```" not in program:
        same(found.code, textwrap.dedent(textwrap.indent(program, " " * width, lambda line: True)))
    else:
        # Text inside strings moved with the block: what is left is a program all the same.
        assert tree(found.code)


@given(programs, st.sampled_from(["", "Plan."]), st.booleans())
@settings(deadline=None, max_examples=150)
def test_dspys_chat_format(program: str, reasoning: str, fenced: bool) -> None:
    if "\n[[ ##" in program:
        return  # a marker on a line of its own is the format's own delimiter
    body = f"```python\n{program}\n```" if fenced else program
    found = find_code(f"[[ ## reasoning ## ]]\n{reasoning}\n\n[[ ## code ## ]]\n{body}\n\n[[ ## completed ## ]]")
    assert (found.reasoning, found.code) == (reasoning, program)


@given(programs, st.booleans(), st.sampled_from(["```json", "```", ""]))
@settings(deadline=None, max_examples=150)
def test_json_with_a_code_field(program: str, fenced: bool, wrap: str) -> None:
    fields = {"reasoning": "why", "code": f"```python\n{program}\n```" if fenced else program}
    text = json.dumps(fields, indent=1)
    found = find_code(f"{wrap}\n{text}\n```" if wrap else text)
    assert (found.reasoning, found.code) == ("why", program)


@given(programs)
@settings(deadline=None, max_examples=100)
def test_nothing_but_code_is_code(program: str) -> None:
    if "\n[[ ##" in program:
        return  # read as DSPy's chat format
    found = find_code(program)
    does_something = any(word in program for word in ("=", "print", "for ", "class "))
    assert (found.code, found.reasoning) == ((program, "") if does_something else ("", program))


@given(st.text(max_size=400))
@settings(deadline=None, max_examples=300)
def test_any_text_is_taken_apart_without_an_error(text: str) -> None:
    reply = find_code(text)
    assert isinstance(reply.code, str) and isinstance(reply.reasoning, str)


@given(st.text(alphabet="`~'\"\\ \npyx#[]{}=(", max_size=200))
@settings(deadline=None, max_examples=500)
def test_any_heap_of_fences_and_quotes_is_taken_apart_without_an_error(text: str) -> None:
    reply = find_code(text)
    assert set("".join(reply.code.split())) <= set(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```\npython\nx = 1\n```", "x = 1"),
        ("```python\npython\nx = 1\n```", "x = 1"),
        ("python\nx = 1", "x = 1"),
        ("```python\nx = 1```", "x = 1"),
        ("```python\nx = 1``` and that is it", "x = 1``` and that is it"),
        ("Run ```x```\n```python print(1)```", "print(1)"),
        ("```python\nx = 1\n```python\ny = 2\n```", "x = 1\n\ny = 2"),
        ("```python\nx = 1\n# see ```\n```", "x = 1\n# see ```"),
        ("```text\nnot closed\n```python\nx = 1\n```", "x = 1"),
        ("```json\n{}\n```\n```python\nx = 1\n```", "x = 1"),
        ("```python\nprint(1)\n```\nOutput:\n```\n2 items found\n```", "print(1)"),
        ("```\nx = 1\n```\n```\ny = 2\n```", "x = 1\n\ny = 2"),
        ("```python\n1 +\n```\ntext", "1 +"),
        ("```python\ns = '''\n```\nand on it goes", "s = '''"),
        ("```python\nx = 1\\\n\n```", "x = 1\\\n"),
        ("```javascript\nalert(1)\n```", ""),
        ("Answer: 42", ""),
        ("yes", ""),
        ("I do not know.", ""),
        ("", ""),
        ("```python\n```", ""),
        ("[[ ## answer ## ]]\n42", ""),
        ("await llm_query('x')", "await llm_query('x')"),
        ("```python\r\nx = '''a\r\nb'''\r\n```", "x = '''a\nb'''"),
        ("`````markdown\n```python\nx = 1\n```\n`````", ""),
        ('{"reasoning": "r"}', ""),
        ("<think>Try\n```python\nbad()\n```\n</think>\nGo:\n```python\ngood()\n```", "good()"),
        ("Try\n```python\nbad()\n```\n</think>\n\n```python\ngood()\n```", "good()"),
        ("<think>\n```python\nonly()\n```\n</think>", "only()"),
        ("```python\ns = '</think>'\n```\nand ```x```", "s = '</think>'"),
        ("```python\nprint('[[ ## code ## ]]')\n```", "print('[[ ## code ## ]]')"),
    ],
)
def test_what_models_write(text: str, code: str) -> None:
    assert find_code(text).code == code


def test_what_was_thought_is_reasoning() -> None:
    found = find_code("<think>First\n```python\nbad()\n```\n</think>\nGo:\n```python\ngood()\n```")
    assert found.reasoning == "First\n```python\nbad()\n```\nGo:"


def test_strings_of_an_indented_block_may_stand_further_left() -> None:
    found = find_code("- do\n  ```python\n  s = '''\nfar left\n'''\n  print(s)\n  ```")
    same(found.code, "s = '''\nfar left\n'''\nprint(s)")


@pytest.mark.parametrize(
    "line",
    [
        "```\n",
        "</think>\n",
        "```python\n",
        "```python\n1 2 3\n'''\n```\n'''\n",
        "```python\nx = (\n```\n",
        "```python\nx='''\n```\n```python\ny=\"\"\"\n```\n",
        "'''\n```\n",
        "~~~text\n```\n",
        "  ```python\n  x = 1\n",
        "```js\n",
        "[[ ## code ## ]]\n",
        "\n",
        " x\n",
        "\\'",
        "`",
        " ",
        "(",
    ],
)
@pytest.mark.parametrize("start", ["", "```", "```python\n", "```python\n'''\n", "```python\n("])
def test_a_hostile_reply_of_a_megabyte_takes_no_time(start: str, line: str) -> None:
    text = start + line * (1_000_000 // len(line))
    began = time.process_time()
    find_code(text)
    # A second on an idle machine; quadratic behaviour would take minutes.
    assert time.process_time() - began < 3


def test_replies_are_read_in_many_threads_at_once() -> None:
    """Python 3.11 parses wrongly where a finalizer lets another thread parse in between (CPython issue 106905)."""
    source = "x = f(a, b)\n" * 400

    class Garbage:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            for _ in range(50):
                pass

    def read(_: int) -> str:
        for _ in range(20):
            Garbage()
        return find_code(source).code

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(read, range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert set(found) == {source.rstrip()}
