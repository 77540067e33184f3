"""Variants that other packages bring: reward components, algorithms, gates, engines, importers, graders, suites, ...

Each kind of variant has one table in the code, a `PluginTable`: it names the built-in ones, and behind them stand those
that installed packages declare as entry points of the kind's group:

    [project.entry-points."ratchet.reward_components"]
    brevity = "acme_rewards:brevity"

Names are known without importing anything; a variant is imported when it is first used, once in a process. One that
does not fit its kind, cannot be imported, or has a name that is taken, is refused with a sentence that names its
package. A built-in name is never replaced.

An entry point that names an extra, `... = "acme_rewards:brevity [detoxify]"`, is there where a package of this name can
be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Generic, TypeVar, cast

from ratchet.core.errors import ConfigError

V = TypeVar("V")

TABLES: Mapping[str, str] = {
    "ratchet.reward_components": "ratchet.reward_computer.components:COMPONENTS",
    "ratchet.algorithms": "ratchet.core.rules.algorithms:ALGORITHMS",
    "ratchet.gates": "ratchet.canary_deployer.gates:GATES",
    "ratchet.engines": "ratchet.gateway.engines:KINDS",
    "ratchet.importers": "ratchet.extras.importers:IMPORTERS",
    "ratchet.exporters": "ratchet.extras.exporters:KINDS",
    "ratchet.detectors": "ratchet.core.rules.redaction.detectors:DETECTORS",
    "ratchet.graders": "ratchet.core.evaluation.graders:GRADERS",
    "ratchet.suites": "ratchet.core.evaluation.suites:SUITES",
    "ratchet.filters": "ratchet.gateway.filters:FILTERS",
}
"""Entry-point group -> the table of its kind."""


class Misfit(Exception):
    """Why an object is no variant of a kind, as the end of a sentence: `it takes two arguments`."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One variant, as people see it in a list."""

    group: str
    name: str
    package: str
    """Distribution and version that bring it; `built in` for ours."""
    refused: str | None = None
    """Why it cannot be used; None when it can, or was not asked for yet."""


class PluginTable(Mapping[str, V], Generic[V]):
    """The variants of one kind by name: first the built-in ones, in their order, then those of other packages.

    Looking up a name raises `KeyError` when nothing has it, and `ConfigError` for a variant that is refused.
    """

    def __init__(self, group: str, noun: str, built_in: Mapping[str, V], fit: Callable[[str, object], V]) -> None:
        """`noun`: what people call one variant. `fit(name, object)` returns the variant or raises `Misfit`."""
        self.group = group
        self.noun = noun
        self.built_in = built_in
        self.fit = fit
        self._loaded: dict[str, V] = {}
        self._refused: dict[str, ConfigError] = {}

    def __getitem__(self, name: str) -> V:
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._loaded and name not in self._refused:
            try:
                self._loaded[name] = self._load(self._declared[name])
            except ConfigError as error:
                self._refused[name] = error
        if name in self._refused:
            refused = self._refused[name]
            raise ConfigError(str(refused)) from refused.__cause__  # the same one again would collect tracebacks
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.built_in, *self._declared))

    def __len__(self) -> int:
        return len(self.built_in) + len(self._declared)

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self._declared

    def describe(self, name: str) -> str:
        """What a built-in variant says of itself, in its `summary`; of another one, which package brings it."""
        if name in self.built_in:
            return str(getattr(self.built_in[name], "summary"))  # noqa: B009 - only some kinds have one
        return f"{name} of {_and(self._declared[name])}"

    def plugins(self, *, load: bool) -> Iterator[Plugin]:
        """All variants that are there, refused ones included; `load` imports them, else only names are compared."""
        yield from (Plugin(self.group, name, "built in") for name in self.built_in)
        for entry in sorted(_entries(self.group), key=lambda entry: (entry.name, package_of(entry))):
            yield Plugin(self.group, entry.name, package_of(entry), self._refusal(entry, load=load))

    @cached_property
    def _declared(self) -> Mapping[str, list[EntryPoint]]:
        """What other packages declare, by name; built-in names left out."""
        declared: dict[str, list[EntryPoint]] = {}
        for entry in _entries(self.group):
            if entry.name not in self.built_in:
                declared.setdefault(entry.name, []).append(entry)
        return dict(sorted(declared.items()))

    def _refusal(self, entry: EntryPoint, *, load: bool) -> str | None:
        if entry.name in self.built_in:
            return "the name is that of a built-in one"
        rivals = self._declared.get(entry.name, [entry])
        if len(rivals) > 1:
            return f"the name is declared by {_and(rivals)}"
        if load:
            try:
                self[entry.name]
            except ConfigError as error:
                return str(error.__cause__ or error)
        return None

    def _load(self, entries: list[EntryPoint]) -> V:
        if len(entries) > 1:
            raise ConfigError(f"{self.noun} {entries[0].name!r} is declared by {_and(entries)}: uninstall all but one")
        entry = entries[0]
        try:
            return self.fit(entry.name, entry.load())
        except Misfit as error:
            raise ConfigError(f"{self.noun} {entry.name!r} of {package_of(entry)} does not fit: {error}") from error
        except Exception as error:  # the boundary: importing runs code of other packages
            where = f"{self.noun} {entry.name!r} of {package_of(entry)}"
            raise ConfigError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error


def tables() -> list[PluginTable[Any]]:
    """The tables of all kinds. Imports the parts of the product that they are in. `Any`: each has its own variants."""
    places = (place.partition(":") for place in TABLES.values())
    return [cast("PluginTable[Any]", getattr(import_module(module), attribute)) for module, _, attribute in places]


def package_of(entry: EntryPoint) -> str:
    """Name and version of the distribution that declares it."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"


def callable_with(arguments: int) -> Callable[[str, object], Any]:
    """A `fit` for functions that are called with so many positional arguments."""

    def fit(_name: str, candidate: object) -> Any:
        import inspect  # noqa: PLC0415 - slow to import, and only variants of other packages are looked at

        if not callable(candidate):
            raise Misfit(f"it is a {type(candidate).__name__}, not a function")
        try:
            inspect.signature(candidate).bind(*range(arguments))
        except (TypeError, ValueError) as error:
            raise Misfit(f"it cannot be called with {arguments} positional argument(s): {error}") from error
        return candidate

    return fit


def instance_of(kind: type[V]) -> Callable[[str, object], V]:
    """A `fit` for values of one type."""

    def fit(_name: str, candidate: object) -> V:
        if not isinstance(candidate, kind):
            raise Misfit(f"it is a {type(candidate).__name__}, not a {kind.__module__}.{kind.__qualname__}")
        return candidate

    return fit


def _entries(group: str) -> list[EntryPoint]:
    return [entry for entry in entry_points(group=group) if all(map(find_spec, entry.extras))]


def _and(entries: list[EntryPoint]) -> str:
    return " and ".join(sorted(map(package_of, entries)))
