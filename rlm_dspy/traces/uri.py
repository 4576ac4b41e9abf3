"""The address of a store that is a file."""

from __future__ import annotations

from pathlib import Path
from typing import overload

SQLITE = "sqlite:///"


@overload
def anchored(uri: str) -> str: ...
@overload
def anchored(uri: None) -> None: ...
def anchored(uri: str | None) -> str | None:
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
