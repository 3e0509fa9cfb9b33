"""Stores the results of searches in one SQLite file.

Every row is written in its own transaction to a write-ahead log. A process that is
killed loses no stored row, and other processes may read and write at the same time.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwright import __version__
from meshwright.errors import MeshwrightError, SpecError
from meshwright.escape import printable
from meshwright.reading.document import shown
from meshwright.sweeps.cases import Case, Row
from meshwright.sweeps.metrics import METRICS

SCHEMA = 1
"""Version of the tables below."""

APPLICATION = 0x4D577268
"""Marks the file as ours: 'MWrh'."""

WAIT_S = 60
"""Seconds to wait for another process to finish its transaction."""

RETRY_S = 0.02

_TABLES = """
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY,      -- hash of spec, profile, seed and code
    spec TEXT NOT NULL,        -- hash of the spec alone
    version TEXT NOT NULL,     -- of Meshwright
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    limits TEXT NOT NULL,      -- what the answer depends on if it is not proven
    row TEXT NOT NULL          -- JSON: axes, plan, terms, certificate, reason
) WITHOUT ROWID;
"""

_COLUMNS = ["key", "spec", "version", "name", "status", "limits", "row"]

MOST_BYTES = 10_000_000
"""Largest value that is read; a row of a thousand stages takes 100,000 bytes."""

_PUT = """
INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    status = excluded.status, limits = excluded.limits, row = excluded.row,
    name = excluded.name
WHERE results.status NOT IN ('optimal', 'infeasible')
"""

FINAL = ("optimal", "infeasible")
"""Answers that are proven: no other limits change them."""


_FOREIGN = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_TOOBIG", "SQLITE_ERROR")
"""Error names of SQLite for files that no search has written."""


class StoreError(MeshwrightError):
    """The store cannot take or give a row; the rows in it are safe."""


class Store:
    """The results of all searches that name this file."""

    def __init__(self, path: Path) -> None:
        """Open a store, or create one.

        Raises:
            SpecError: the file cannot be opened or created, or is no store.
        """
        self.path, self._name = path, printable(str(path))
        with self._told(SpecError):
            self._db = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
            self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
            try:
                self._prepare_in_turn()
            except BaseException:
                self._db.close()
                raise

    def _prepare_in_turn(self) -> None:
        """Prepare the file; retry while another process switches it to a log too."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return self._prepare()
            except sqlite3.OperationalError as error:
                is_late = time.monotonic() > deadline
                if _code(error) != "SQLITE_BUSY" or is_late:
                    raise
                self._roll_back()
                time.sleep(RETRY_S)

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _prepare(self) -> None:
        # Tables are counted first: whoever creates them also marks the file.
        tables = self._number("SELECT count(*) FROM sqlite_master")
        version = self._number("PRAGMA user_version")
        if tables and self._number("PRAGMA application_id") != APPLICATION:
            raise SpecError(f"--store {self._name}: holds something else; name another")
        if version not in (0, SCHEMA):
            raise SpecError(
                f"--store {self._name}: has schema {version}, this version reads "
                f"{SCHEMA}; name another, or use the version that wrote it"
            )
        (health,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if health != "ok":
            raise sqlite3.DatabaseError(str(health))
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(
            f"BEGIN IMMEDIATE; {_TABLES} PRAGMA application_id = {APPLICATION};"
            f"PRAGMA user_version = {SCHEMA}; COMMIT;"
        )
        self._check_tables()

    def _check_tables(self) -> None:
        """Refuse views, triggers and columns that no store has: they could run code.

        Raises:
            SpecError: there are some.
        """
        others = "name != 'results' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        count = self._number(f"SELECT count(*) FROM sqlite_master WHERE {others}")
        kinds = self._db.execute(
            "SELECT type FROM sqlite_master WHERE name = 'results'"
        ).fetchall()
        columns = self._db.execute(
            "SELECT name FROM pragma_table_xinfo('results')"
        ).fetchall()
        if count or kinds != [("table",)] or [name for (name,) in columns] != _COLUMNS:
            told = "has other tables or columns than a store; name another"
            raise SpecError(f"--store {self.path}: {told}")

    def _number(self, query: str) -> int:
        (number,) = self._db.execute(query).fetchone()
        return int(number)

    def put(self, row: Row, case: Case, limits: str) -> None:
        """Store a row, unless the store has a proven one for its key.

        Raises:
            StoreError: the row cannot be written.
        """
        text = row.model_dump_json()
        spec = case.spec.model_dump_json() if case.spec else case.error
        digest = hashlib.sha256(spec.encode()).hexdigest()
        values = (row.key, digest, __version__, row.name, row.status, limits, text)
        with self._told(StoreError):
            self._db.execute(_PUT, values)

    def get(self, keys: Sequence[str], limits: str) -> Iterator[Row]:
        """Yield the rows of some keys that hold under these limits.

        Failed rows are left out, so that their cases are tried again.

        Raises:
            StoreError: the rows cannot be read.
        """
        with self._told(StoreError):
            for key in keys:
                found = self._db.execute(
                    "SELECT status, limits, row FROM results WHERE key = ?", (key,)
                ).fetchone()
                if found and _holds(found[0], found[1], limits):
                    yield self._row(key, found[2])

    def _row(self, key: str, text: Any) -> Row:
        """Return a row from its stored text.

        Raises:
            StoreError: the stored text is no row, since somebody has changed it.
        """
        try:
            row = Row.model_validate_json(text if isinstance(text, str) else "")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))[:60] or "row"
            is_other = first["type"] in ("json_invalid", "model_type")
            told = "expected the JSON of a row" if is_other else first["msg"]
            problem = f"{field}: {shown(first['input'])}: {told}"
            raise self._bad_row(key, problem) from None
        if row.key != key:
            raise self._bad_row(key, f"key: {shown(row.key)}: expected that of the row")
        for name in METRICS:
            if not math.isfinite(getattr(row, name) or 0):
                raise self._bad_row(key, f"{name}: expected a finite number")
        return row

    def _bad_row(self, key: str, problem: str) -> StoreError:
        place = f"--store {self.path}: row {key}"
        return StoreError(f"{place}: {problem}; move the file away or name another")

    def __enter__(self) -> Store:
        """Return the store."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _told(self, error: type[MeshwrightError]) -> Iterator[None]:
        """Turn an error of SQLite into one that names the file and says what helps."""
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeError) as reason:
            raise error(f"--store {self._name}: {reason}; {_advice(reason)}") from None


def _holds(status: str, limits: str, asked: str) -> bool:
    return status in FINAL or (status != "failed" and limits == asked)


def _code(reason: Exception) -> str:
    """Return the name that SQLite gives an error; empty for errors of Python."""
    return str(getattr(reason, "sqlite_errorname", ""))


def _advice(reason: Exception) -> str:
    name = _code(reason)
    if name in _FOREIGN or not name:
        return "expected a store of `meshwright search`; move it away or name another"
    if name == "SQLITE_FULL":
        return "what was stored is safe; make room and run it again"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR")):
        return "expected a file in a folder that can be written"
    return "what was stored is safe; run it again"
