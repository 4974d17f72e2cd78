"""Read the config: one YAML file or a directory of YAML files, then ``HA_ENGINE_*``, then secrets.

The loader finds all problems at once, and reports one problem per line, with its key. The package
``config`` defines the keys and their relations. The module ``load`` only finds the values of the
keys.
"""

from __future__ import annotations

import difflib
import os
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from ha_engine.config import Config
from ha_engine.errors import ConfigError
from ha_engine.formats import strict_yaml
from ha_engine.system.runtime_dir import derived_runtime_dir

Tree = TypeVar("Tree", bound=BaseModel)
Key = tuple[str, ...]
"""The path of a key in the tree: ``("lease", "ttl")``, written ``lease.ttl``."""

PREFIX = "HA_ENGINE_"
RESERVED = frozenset(
    PREFIX + name
    for name in ("CONFIG", "URL", "TOKEN", "INCARNATION", "QUERY_OF", "REPORT_FD", "PYTHON")
)
"""Environment variables of ha-engine that set no key of the config."""
DEFAULT = "default"
_MOVED: Mapping[Key, str] = {("query", "master"): "execution.master"}
"""Keys of earlier releases, with the key that replaced each."""


@dataclass(frozen=True)
class Setting:
    """One key of the tree: its path, type, default and description."""

    key: Key
    annotation: Any
    default: Any
    description: str

    @property
    def variable(self) -> str:
        """The environment variable that sets this key."""
        return PREFIX + "_".join(self.key).upper()

    def holds(self, kind: type) -> bool:
        """Whether a value of this key may have the type ``kind``, as in ``Path | None``."""
        return kind in _kinds(self.annotation)


@dataclass(frozen=True)
class Loaded(Generic[Tree]):
    """A config, with the origin of each set key: the name of a file or of a variable.

    ``references`` has each secret as the config refers to it: ``env:NAME`` or ``file:/path``.
    """

    config: Tree
    origins: Mapping[Key, str]
    references: Mapping[Key, str]


@dataclass
class _Draft:
    """The values by key of the config tree ``model`` that the loader has collected so far, and the
    problems that it found."""

    model: type[BaseModel]
    values: dict[Key, Any] = field(default_factory=dict)
    origins: dict[Key, str] = field(default_factory=dict)
    references: dict[Key, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def blame(self, key: Key, reason: str) -> None:
        origin = self.origins.get(key)
        self.problems.append(f"{'.'.join(key)}: {reason}" + (f" ({origin})" if origin else ""))


def load_config(path: Path | None, environ: Mapping[str, str]) -> Config:
    """Load the config as ``load`` does, without the origins of its values."""
    return load(path, environ).config


def load(path: Path | None, environ: Mapping[str, str]) -> Loaded[Config]:
    """Load the config of a node as ``load_tree`` does."""
    return load_tree(Config, path, environ)


def load_tree(model: type[Tree], path: Path | None, environ: Mapping[str, str]) -> Loaded[Tree]:
    """Read, merge and check the config of ``path`` and ``environ``, whose keys are in ``model``.

    If ``path`` is None, only ``environ`` and the defaults give values. A relative path in the
    config starts at the directory of the config file. Raises ConfigError with one line for each
    problem; no line shows a secret.
    """
    draft = _Draft(model)
    base = _read_files(draft, path)
    _read_environment(draft, environ)
    _resolve_secrets(draft, base, environ)
    _resolve_paths(draft, base, environ)
    config = _checked(model, draft)
    if draft.problems or config is None:
        raise ConfigError("\n".join(draft.problems))
    return Loaded(config, draft.origins, draft.references)


# -- the tree --------------------------------------------------------------------------------------


def settings(model: type[BaseModel] = Config) -> Iterator[Setting]:
    """Every key of the tree ``model``, for a node's in the order of the sample file."""
    yield from _settings_of(model, ())


def _settings_of(model: type[BaseModel], prefix: Key) -> Iterator[Setting]:
    for name, found in model.model_fields.items():
        key = (*prefix, found.alias or name)
        if isinstance(found.annotation, type) and issubclass(found.annotation, BaseModel):
            yield from _settings_of(found.annotation, key)
        else:
            default = found.get_default(call_default_factory=True)
            yield Setting(key, found.annotation, default, found.description or "")


def _kinds(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(kind for one in get_args(annotation) for kind in _kinds(one))
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    return (get_origin(annotation) or annotation,)


def _sections(model: type[BaseModel]) -> set[Key]:
    keys = [setting.key for setting in settings(model)]
    return {key[:depth] for key in keys for depth in range(len(key))}


def _open_keys(model: type[BaseModel]) -> set[Key]:
    """The keys below which the user chooses the names of further keys, such as ``query.spark``."""
    return {setting.key for setting in settings(model) if setting.holds(dict)}


# -- files -----------------------------------------------------------------------------------------


def _read_files(draft: _Draft, path: Path | None) -> Path:
    """Read the files at ``path`` into the draft.

    Returns the directory where relative paths of the config start.
    """
    if path is None:
        return Path.cwd()
    inner = _sections(draft.model) | _open_keys(draft.model)
    for file in _files_of(path):
        for key, value in _leaves(_tree_of(file), (), inner):
            if key in draft.values:
                draft.blame(key, f"is set in {draft.origins[key]} and again in {file}; remove one")
            draft.values[key], draft.origins[key] = value, str(file)
    return (path if path.is_dir() else path.parent).absolute()


def _files_of(path: Path) -> list[Path]:
    if not path.exists():
        raise ConfigError(f"config {path} does not exist; name a YAML file or a directory of them")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml"))
    if not files:
        raise ConfigError(f"config directory {path} has no file that ends in .yaml; add one")
    return files


def _tree_of(file: Path) -> Mapping[str, Any]:
    try:
        tree = strict_yaml.parse(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {file} cannot be read: {error}") from error
    except strict_yaml.NotYaml as error:
        raise ConfigError(f"config {file} is not valid YAML: {error}") from error
    if not isinstance(tree, dict | None):
        raise ConfigError(
            f"config {file} must contain keys and values, not a single value or a list"
        )
    return tree or {}


def _leaves(tree: Mapping[Any, Any], prefix: Key, inner: set[Key]) -> Iterator[tuple[Key, Any]]:
    for name, value in tree.items():
        key = (*prefix, str(name))
        if key not in inner:
            yield key, value
        elif isinstance(value, dict):
            yield from _leaves(value, key, inner)
        elif value is not None:  # a section whose keys are all commented out counts as absent
            yield key, value


# -- the environment -------------------------------------------------------------------------------


def _read_environment(draft: _Draft, environ: Mapping[str, str]) -> None:
    known = {setting.variable: setting for setting in settings(draft.model)}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        if variable in known:
            _set_from_variable(draft, known[variable], environ[variable])
        elif variable not in RESERVED:
            reason = f"{variable}: no setting has this environment variable"
            draft.problems.append(reason + _nearest(draft.model, variable, [*known, *RESERVED]))


def _set_from_variable(draft: _Draft, setting: Setting, text: str) -> None:
    values: dict[Key, Any] = {setting.key: text}
    if setting.holds(dict) or setting.holds(list):
        try:
            parsed = strict_yaml.parse(text)
        except strict_yaml.NotYaml as error:
            draft.problems.append(f"{setting.variable}: is not valid YAML: {error}")
            return
        inner = {setting.key} if setting.holds(dict) else set[Key]()
        values = dict(_leaves({setting.key[-1]: parsed}, setting.key[:-1], inner))
    draft.values.update(values)
    draft.origins.update(dict.fromkeys(values, setting.variable))


def _nearest(model: type[BaseModel], word: str, known: Iterable[str]) -> str:
    match difflib.get_close_matches(word, list(known), n=1, cutoff=0.5):
        case [near]:
            return f"; did you mean {near}?"
        case _ if model is Config:
            return "; 'ha-engine config schema' lists all"
        case _:
            return f"; known are {', '.join(model.model_fields)} and the keys below them"


# -- secrets and paths -----------------------------------------------------------------------------


def _resolve_secrets(draft: _Draft, base: Path, environ: Mapping[str, str]) -> None:
    for setting in settings(draft.model):
        written = draft.values.get(setting.key)
        if not setting.holds(SecretStr) or not isinstance(written, str):
            continue
        scheme, _, target = written.partition(":")
        if scheme in ("env", "file"):
            draft.references[setting.key] = written
            draft.values[setting.key] = secret = dereferenced(written, base, environ)
            if not secret:
                _blame_reference(draft, setting.key, scheme, target)


def dereferenced(written: str, base: Path, environ: Mapping[str, str]) -> str | None:
    """The value to which ``written`` refers with ``env:NAME`` or ``file:/path``.

    Returns None if the variable or the file is missing, and any other text unchanged.
    """
    scheme, _, target = written.partition(":")
    match scheme:
        case "env":
            return value.strip() if (value := environ.get(target)) is not None else None
        case "file":
            return _content_of(base / target)
        case _:
            return written


def is_reference(written: object) -> bool:
    """Whether ``written`` refers to a variable or a file that has the value."""
    return isinstance(written, str) and written.startswith(("env:", "file:"))


def _blame_reference(draft: _Draft, key: Key, scheme: str, target: str) -> None:
    what = "environment variable" if scheme == "env" else "file"
    draft.blame(key, f"refers to the {what} {target}, which is missing or empty; provide it")
    del draft.values[key]


def _content_of(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _resolve_paths(draft: _Draft, base: Path, environ: Mapping[str, str]) -> None:
    for setting in settings(draft.model):
        value = draft.values.get(setting.key, setting.default)
        is_path = isinstance(value, str | Path) and str(value) and "://" not in str(value)
        if setting.holds(Path) and is_path:
            draft.values[setting.key] = Path(os.path.normpath(base / Path(value).expanduser()))
    data_dir = draft.values.get(("node", "data_dir"))
    if isinstance(data_dir, Path) and draft.values.get(("node", "runtime_dir")) is None:
        draft.values["node", "runtime_dir"] = derived_runtime_dir(data_dir, environ)


# -- checking --------------------------------------------------------------------------------------


def _checked(model: type[Tree], draft: _Draft) -> Tree | None:
    try:
        return model.model_validate(_nested(draft.values))
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_context=False, include_input=False):
            _blame_value(draft, problem)
    return None


def _nested(values: Mapping[Key, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in sorted(values.items(), key=lambda item: len(item[0])):
        section = tree
        for name in key[:-1]:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                break
        else:
            section[key[-1]] = value
    return tree


def _blame_value(draft: _Draft, problem: ErrorDetails) -> None:
    key = tuple(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    match problem["type"]:
        case "extra_forbidden" if moved := _MOVED.get(key):
            draft.blame(key, f"is now {moved}")
        case "extra_forbidden":
            known = _known_keys(draft.model)
            draft.blame(key, "is not a known key" + _nearest(draft.model, ".".join(key), known))
        case "model_type":
            below = next(name for name in _known_keys(draft.model) if name.startswith(f"{key[0]}."))
            draft.blame(key, f"is a section; write keys below it, such as {below}")
        case "value_error" if not key:
            draft.problems.extend(message.splitlines())
        case "string_pattern_mismatch":
            purpose = _purpose(draft.model, key)
            draft.blame(key, f"has characters or a form that is not allowed; {purpose}")
        case _:
            draft.blame(key, message[0].lower() + message[1:])


def _known_keys(model: type[BaseModel]) -> list[str]:
    keys = {setting.key for setting in settings(model)} | _sections(model)
    return sorted(".".join(key) for key in keys if key)


def _purpose(model: type[BaseModel], key: Key) -> str:
    found = next((s.description for s in settings(model) if s.key == key), "")
    return f"the key is: {found}" if found else "see 'ha-engine config schema'"
