"""The address of a store that is a file."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

SQLITE = "sqlite:///"
_Uri = TypeVar("_Uri", str, str | None)


def anchored(uri: _Uri) -> _Uri:
    """The URI with the whole path of its SQLite file; any other as it is.

    MLflow keeps an open database for each URI, so that the same relative path names the first one even after the
    working directory has changed, and SQLite opens the other for further connections.
    """
    if uri is None or not uri.startswith(SQLITE):
        return uri
    path, mark, query = uri.removeprefix(SQLITE).partition("?")
    if not path or path == ":memory:" or path.startswith("file:"):
        return uri
    return f"{SQLITE}{Path(path).absolute()}{mark}{query}"
