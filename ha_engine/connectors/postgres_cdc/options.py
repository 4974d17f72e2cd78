"""The keys of a source of type ``postgres_cdc`` in an application file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from ha_engine.config.quantities import Duration

_SLOT = re.compile(r"[a-z0-9_]{1,63}")

Operation = Literal["insert", "update", "delete", "truncate"]
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[^\x00]+$")]
"""A name in PostgreSQL, as it is and without quotes."""
Timeout = Annotated[Duration, Field(gt=0)]


class PostgresCdcOptions(BaseModel):
    """The options of the source.

    The server: ``host`` is a name, an address or the directory of a Unix socket, or several
    separated by commas, of which the source takes the one that is no standby. ``port``,
    ``database``, ``user`` and ``password`` are the usual ones. ``tls`` is libpq's sslmode; without
    it the source verifies the server if ``ca_file`` is given, and else uses TLS if the server
    does. ``certificate_file`` and ``key_file`` are the client's. ``connect_timeout`` limits an
    attempt to connect, and ``timeout`` the wait for a lock or for older transactions when the slot
    is created.

    The table: ``table`` in ``table_schema``. ``slot`` is the name of the replication slot, by
    default made of the names of group, stream and source. ``publication`` is by default the same
    name. With ``create`` the source creates the publication if it is missing. ``initial`` reads
    the rows of the table before its changes. ``heartbeat`` is how often the source journals its
    progress while other tables fill the log.

    The rows: ``operations`` are those that become rows. ``operation_column``, ``lsn_column``,
    ``commit_time_column``, ``before_column`` and ``unchanged_column`` name columns of the stream
    that get the operation, the position of the commit, its time, the old row, and the names of
    the columns that an update did not change and the log does not have. ``unchanged`` says what
    happens to such an update if ``unchanged_column`` is not set. ``ignore_columns`` are columns
    of the table that the stream does not get. ``absent_columns`` are columns of the stream that
    the table does not have, and that are null.

    ``skip_to`` is a position in the log, such as 0/16B3748, at which the source may continue
    although changes before it are lost.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    host: str = Field(min_length=1)
    port: int = Field(5432, ge=1, le=65535)
    database: Name
    user: Name
    password: SecretStr | None = None
    tls: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    connect_timeout: Timeout = 10.0
    timeout: Timeout = 30.0

    table_schema: Name = "public"
    table: Name
    slot: str | None = None
    publication: Name | None = None
    create: bool = False
    initial: bool = False
    heartbeat: Timeout = 10.0

    operations: frozenset[Operation] = frozenset({"insert", "update", "delete", "truncate"})
    operation_column: Name | None = "op"
    lsn_column: Name | None = None
    commit_time_column: Name | None = None
    before_column: Name | None = None
    unchanged_column: Name | None = None
    unchanged: Literal["refuse", "dead_letter"] = "refuse"
    ignore_columns: frozenset[Name] = frozenset()
    absent_columns: frozenset[Name] = frozenset()

    skip_to: str | None = Field(None, pattern=r"^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.slot is not None and not _SLOT.fullmatch(self.slot):
            raise ValueError(
                "slot may have at most 63 lower case letters, digits and underscores, since "
                "PostgreSQL allows no others"
            )
        if not self.operations:
            raise ValueError("operations must name at least one operation")
        if self.operation_column is None and self.operations & {"delete", "truncate"}:
            raise ValueError(
                "without operation_column a delete or a truncation would look like any other row; "
                "set operation_column, or leave delete and truncate out of operations"
            )
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        if self.tls in ("verify-ca", "verify-full") and self.ca_file is None:
            raise ValueError(f"tls: {self.tls} needs ca_file")
        named = [
            one
            for one in (
                self.operation_column,
                self.lsn_column,
                self.commit_time_column,
                self.before_column,
                self.unchanged_column,
            )
            if one is not None
        ]
        if len(set(named)) < len(named):
            raise ValueError("two of the options ending in _column name the same column")
        return self

    @property
    def ssl_mode(self) -> str:
        """libpq's sslmode."""
        return self.tls or ("verify-full" if self.ca_file else "prefer")
