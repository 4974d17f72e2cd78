"""Several applications in a directory are one for a node, if no name of theirs means two things."""

from __future__ import annotations

from pathlib import Path

import pytest

from ha_engine.errors import ApplicationError
from ha_engine.query.application import PythonFunction, StreamApplication, load_application
from ha_engine.query.application_versions import ApplicationVersions, PythonChanged
from ha_engine.query.layout import directories_of

TEXT = """
name: {name}
streams:
  {stream}:
    schema: {{id: int not null, seconds: int}}
queries:
  {query}:
    {text}
    sinks: [{sink}]
"""
SINK = "{name: table, type: postgres, table: copies, auto_create: true}"
SUMS = (
    "{{name: {name}, type: aggregation, table: {table}, at: at, per: [minute], "
    "values: {{n: count(*)}}}}"
)


def add(
    directory: Path,
    name: str,
    *,
    stream: str = "",
    query: str = "",
    function: str = "",
    sink: str = SINK,
    **modules: str,
) -> StreamApplication:
    """Add an application with Python modules, and load all."""
    stream, query = stream or f"{name}_events", query or f"{name}_copies"
    text = f"function: {function}" if function else f"sql: SELECT id FROM {stream}"
    beside = directory / "applications" / name.lower()
    beside.mkdir(parents=True)
    for module, content in modules.items():
        (beside / f"{module}.py").write_text(content)
    written = TEXT.format(name=name, stream=stream, query=query, text=text, sink=sink)
    (beside / "application.yaml").write_text(written)
    return load_application(directory)


def test_streams_and_queries_of_all_applications_are_those_of_the_node(tmp_path: Path) -> None:
    add(tmp_path, "orders")
    both = add(tmp_path, "flights", function="rules:select", rules="def select(streams): ...")
    assert both.name == "flights, orders"
    assert list(both.streams) == ["flights_events", "orders_events"]
    assert list(both.queries) == ["flights_copies", "orders_copies"]
    assert [one.name for one in both.applications] == ["flights", "orders"]
    assert both.digest not in {one.digest for one in both.applications}


def test_paths_are_relative_to_the_application_that_names_them(tmp_path: Path) -> None:
    select = "def select(streams): ..."
    for name in ("flights", "orders"):
        both = add(tmp_path, name, function=f"{name}_rules:select", **{f"{name}_rules": select})
    for name in ("flights", "orders"):
        query, directory = both.queries[f"{name}_copies"], tmp_path / "applications" / name
        assert isinstance(query.text, PythonFunction)
        assert query.text.source == directory / f"{name}_rules.py"
        assert both.directory_of(query) == directory
        assert both.directory_of(both.streams[f"{name}_events"]) == directory
    assert both.directories == directories_of(tmp_path)


def test_function_in_the_module_of_another_application_is_refused(tmp_path: Path) -> None:
    add(tmp_path, "flights", function="only_there:select", only_there="def select(streams): ...")
    with pytest.raises(ApplicationError, match="there is no module 'only_there'"):
        add(tmp_path, "orders", function="only_there:select")


@pytest.mark.parametrize(
    ("other", "refusal"),
    [
        ({"stream": "Flights_events"}, "stream 'Flights_events' is in the applications flights"),
        ({"query": "flights_COPIES"}, "query 'flights_COPIES' is in the applications flights"),
        ({"rules": ""}, "Python module 'rules' is in the applications flights and orders"),
        ({"sink": SUMS.format(name="sums", table="mine")}, "aggregation 'sums' is in"),
        ({"sink": SUMS.format(name="other", table="sums")}, "aggregation table 'sums' is in"),
    ],
)
def test_name_in_two_applications_is_refused_with_both(
    tmp_path: Path, other: dict[str, str], refusal: str
) -> None:
    add(tmp_path, "flights", sink=SUMS.format(name="sums", table="sums"), rules="")
    with pytest.raises(ApplicationError, match=refusal):
        add(tmp_path, "orders", **other)  # type: ignore[arg-type]


def test_package_and_module_of_one_name_are_refused(tmp_path: Path) -> None:
    add(tmp_path, "flights", rules="")
    package = tmp_path / "applications" / "orders" / "rules" / "deep"
    package.mkdir(parents=True)
    (package / "one.py").write_text("")
    (package.parents[1] / "application.yaml").write_text(
        TEXT.format(name="orders", stream="s", query="q", text="sql: SELECT id FROM s", sink=SINK)
    )
    with pytest.raises(ApplicationError, match="Python module 'rules'"):
        load_application(tmp_path)


def test_two_directories_with_one_name_are_refused(tmp_path: Path) -> None:
    add(tmp_path, "flights")
    (tmp_path / "applications" / "flights").rename(tmp_path / "applications" / "first")
    with pytest.raises(ApplicationError, match="the name 'flights' is in the applications"):
        add(tmp_path, "flights", stream="other", query="other")


def test_directory_without_an_application_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ApplicationError, match="and no applications/NAME"):
        load_application(tmp_path)


def test_directory_with_one_application_is_that_application(tmp_path: Path) -> None:
    add(tmp_path, "flights")
    file = tmp_path / "applications" / "flights" / "application.yaml"
    assert load_application(file.parent) == load_application(file)


def test_python_of_a_second_application_needs_another_query_process(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    before = add(first, "flights", function="rules:select", rules="def select(streams): ...")
    versions = ApplicationVersions(before.path)
    digest = before.queries["flights_copies"].digest
    assert versions.holding("flights_copies", digest) == before
    add(second, "flights", function="rules:select", rules="def select(streams): ...")
    add(second, "orders")
    with pytest.raises(PythonChanged):
        versions.holding("flights_copies", digest, second)
