"""Read a test file with pydantic, and check its names against the application.

The module ``events`` checks the events, and ``comparison`` the expected rows, whose types Spark
must plan first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from ha_engine.app_test.cases import Batch, Case, CaseFile, Events, Expectation, Place
from ha_engine.errors import BadTestFile
from ha_engine.formats.strict_yaml import Document, NotYaml, parse_document
from ha_engine.query.application import StreamApplication, load_application
from ha_engine.query.file_words import Section, found, keys_of, most_telling, nearest, sentence

_RECEIVED_AT = "_received_at"


class _Expectation(Section):
    rows: list[dict[str, Any]] | None = None
    file: str | None = None
    ordered: bool = False
    changes: bool = False
    key: list[str] | None = Field(None, min_length=1)


def _whole(value: object) -> object:
    """The long form of an expectation, which may be just its rows or the name of their file."""
    match value:
        case list():
            return {"rows": value}
        case str():
            return {"file": value}
        case _:
            return value


class _Test(Section):
    batches: list[Any] = Field(alias="input")
    expect: dict[str, Annotated[_Expectation, BeforeValidator(_whole)]] = Field(min_length=1)
    close: bool = True


class _File(Section):
    application: str
    defaults: dict[str, dict[str, Any]] = Field(default_factory=dict)
    tests: dict[str, _Test] = Field(min_length=1)


def read_cases(path: Path, names: Sequence[str] = ()) -> CaseFile:
    """Read the tests ``names`` of a file, or all tests, and the application that they test.

    Raises BadTestFile, which names the file, the line and the key, and ApplicationError.
    """
    text = _text(path)
    try:
        document = parse_document(text)
    except NotYaml as error:
        raise BadTestFile(f"{path}: is not YAML: {error}") from None
    root = Place(path, document, ())
    parsed = _parsed(root, document)
    application = load_application(path.parent / parsed.application)
    _require_streams(root.at("defaults"), parsed.defaults, application)
    for name in names:
        if name not in parsed.tests:
            raise root.at("tests").bad(f"there is no test {name!r}{nearest(name, parsed.tests)}")
    cases = tuple(
        _case(root.at("tests", name), name, test, application, parsed.defaults)
        for name, test in parsed.tests.items()
        if not names or name in names
    )
    return CaseFile(path, text, application, cases)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()  # with its line breaks, which an update keeps
    except OSError as error:
        raise BadTestFile(f"{path}: cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError as error:
        raise BadTestFile(f"{path}: is not UTF-8: {error}") from None


def _parsed(root: Place, document: Document) -> _File:
    try:
        return _File.model_validate(document.values)
    except ValidationError as error:
        errors = found(error)
        line = document.line(tuple(most_telling(errors)["loc"]))
        raise BadTestFile(f"{root.file}:{line}: {sentence(errors, _keys_at)}") from None


def _keys_at(place: list[str]) -> list[str]:
    model: type[BaseModel]
    match place:
        case []:
            model = _File
        case ["tests", _]:
            model = _Test
        case _:
            model = _Expectation
    return keys_of(model)


def _require_streams(
    place: Place, names: Mapping[str, object], application: StreamApplication
) -> None:
    for name in names:
        if name not in application.streams:
            raise place.at(name).bad(
                f"the application has no stream {name!r}{nearest(name, [*application.streams])}"
            )


def _case(
    place: Place,
    name: str,
    test: _Test,
    application: StreamApplication,
    defaults: Mapping[str, Mapping[str, Any]],
) -> Case:
    batches = tuple(
        _batch(place.at("input", number), batch, application, defaults)
        for number, batch in enumerate(test.batches)
    )
    expected = tuple(
        _expectation(place.at("expect", query), query, raw, application)
        for query, raw in test.expect.items()
    )
    return Case(name, batches, expected, test.close)


# -- input -----------------------------------------------------------------------------------------


def _batch(
    place: Place,
    raw: object,
    application: StreamApplication,
    defaults: Mapping[str, Mapping[str, Any]],
) -> Batch:
    """Read one item of ``input``: a mapping from streams to events, or a list of such mappings."""
    events, received_at = list[Events](), None
    for part, where in _parts(place, raw):
        for stream, rows in part.items():
            if stream == _RECEIVED_AT:
                received_at = str(rows)
                continue
            _require_streams(where, {stream: rows}, application)
            events.append(_events(where.at(stream), stream, rows, defaults.get(stream, {})))
    return Batch(tuple(events), place, received_at)


def _parts(place: Place, raw: object) -> Iterator[tuple[Mapping[str, object], Place]]:
    match raw:
        case None:
            return
        case dict():
            yield raw, place
        case list():
            for number, part in enumerate(raw):
                if not isinstance(part, dict):
                    raise place.at(number).bad("must be a mapping from streams to events")
                yield part, place.at(number)
        case _:
            raise place.bad("must be a mapping from streams to events, or a list of such mappings")


def _events(place: Place, stream: str, raw: object, defaults: Mapping[str, Any]) -> Events:
    match raw:
        case str():
            return Events(stream, place, file=place.file.parent / raw)
        case list():
            for number, row in enumerate(raw):
                if not isinstance(row, dict):
                    raise place.at(number).bad("an event must be a mapping from columns to values")
            return Events(stream, place, tuple({**defaults, **row} for row in raw))
        case _:
            raise place.bad("must be a list of events, or the name of a file with events")


# -- expect ----------------------------------------------------------------------------------------


def _expectation(
    place: Place, query: str, raw: _Expectation, application: StreamApplication
) -> Expectation:
    if query not in application.queries:
        raise place.bad(
            f"the application has no query {query!r}{nearest(query, [*application.queries])}"
        )
    if (raw.rows is None) == (raw.file is None):
        raise place.bad("needs one of rows and file, and not both")
    if raw.changes and raw.key is not None:
        raise place.bad("changes are the rows of every batch and need no key; remove one of both")
    return Expectation(
        query,
        place,
        None if raw.rows is None else tuple(raw.rows),
        None if raw.file is None else place.file.parent / raw.file,
        raw.ordered,
        raw.changes,
        None if raw.key is None else tuple(raw.key),
    )
