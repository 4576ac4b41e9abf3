"""A Deno cache in which DSPy's ``PythonInterpreter`` starts also where Deno's own module host is not reached.

DSPy's runner imports one function from there, a reader of lines. A stand-in of ours is put into the cache under the
name that Deno gives to the address, which is read from the runner. Pyodide itself is fetched by Deno as usual.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

_LINES = """\
export async function* readLines(source: { read(into: Uint8Array): Promise<number | null> }) {
  const decoder = new TextDecoder();
  const piece = new Uint8Array(1 << 16);
  let rest = "";
  for (let size = await source.read(piece); size !== null; size = await source.read(piece)) {
    const lines = (rest + decoder.decode(piece.subarray(0, size), { stream: true })).split("\\n");
    rest = lines.pop() ?? "";
    for (const line of lines) yield line.replace(/\\r$/, "");
  }
  if (rest) yield rest;
}
"""


def seed(folder: Path) -> None:
    """Put the stand-in into the Deno cache ``folder``."""
    spec = importlib.util.find_spec("dspy")
    assert spec is not None and spec.origin is not None
    runner = Path(spec.origin).parent / "primitives" / "runner.js"
    for address in re.findall(r'from "(https?://[^"]+)"', runner.read_text(encoding="utf-8")):
        parts = urlsplit(address)
        name = hashlib.sha256(parts.path.encode()).hexdigest()
        file = folder / "remote" / parts.scheme / parts.netloc / name
        file.parent.mkdir(parents=True, exist_ok=True)
        told = {"headers": {"content-type": "application/typescript"}, "url": address}
        file.write_text(f"{_LINES}\n// denoCacheMetadata={json.dumps(told, separators=(',', ':'))}", encoding="utf-8")
