"""What the names of models stand for: roles, their versions, aliases, and all the names that are sold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ratchet.core.contract.bundle import BundleModel
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.contract.state import PolicyStage, PolicyVersion
from ratchet.core.errors import Forbidden, NotFound
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.rules.arms import ModelName, parse_model, variant_of
from ratchet.gateway.engines.base import Upstream
from ratchet.gateway.engines.openai import ANY
from ratchet.gateway.kv_routes import Routes

_ASKABLE = frozenset({PolicyStage.REGISTERED, PolicyStage.CANARY, PolicyStage.STABLE})
"""Stages of versions that any agent may name: those under examination, under test, and serving."""
_NOT_ASKABLE = (
    "{name} is {stage}: only a key with the scope `operate` may ask it; ask for `{role}`, which the policy that serves"
    " answers"
)


Pinned = PolicyVersion | BundleModel
"""What a model's name may pin: a version of a role, or a model of an upstream in the place of the role's policies."""


class Models:
    """The models that agents may ask for."""

    def __init__(
        self,
        routes: Routes,
        upstreams: Sequence[Upstream],
        aliases: Mapping[str, str] | None = None,
        roles: Sequence[str] = (),
        other_role: str = DEFAULT_ROLE,
        *,
        upstream_models: Mapping[str, Set[str]] | None = None,
    ) -> None:
        """`aliases`: any name to a role or to `role@version`, which names the role; `roles`: those that may begin
        behind an upstream; `other_role`: that of every other name, for agents cannot create roles; `upstream_models`:
        by upstream, what it is set to answer with, `*` among them for whatever it is asked for."""
        self._routes = routes
        self._upstreams = upstreams
        self._aliases = aliases or {}
        self._other_role = other_role
        self._upstream_models = upstream_models or {}
        known = {*roles, *(role for upstream in upstreams for role in upstream.roles)}
        targets = [parse_model(target).role for target in self._aliases.values()]
        based = {role if role in known else (variant_of(role) or (role, ""))[0] for role in targets}
        self._named = frozenset(known | based)
        """Roles that need no policy to be asked: those that upstreams, settings or aliases name."""

    def names(self, caller: Caller) -> list[str]:
        """What the caller may ask for: roles, versions that serve, aliases, and the role of all other names where an
        upstream has a model of its own for it."""
        names: list[str] = []
        for role in self._routes.roles():
            route = self._routes.get_route(role)
            served = [route.stable, route.canary.policy if route.canary else None] if route else []
            names += [role, *(f"{role}@{policy.version}" for policy in served if policy)]
        names += [role for role in sorted(self._named) if self._is_served(role, role)]
        names += [name for name in self._aliases if self._is_served(self.role_of(name), name)]
        if any(upstream.policy_for(self._other_role, "") for upstream in self._upstreams):  # whatever was asked
            names.append(self._other_role)
        return [name for name in dict.fromkeys(names) if caller.allows(KeyScope.INFER, self.role_of(name))]

    async def resolve(
        self, name: str, caller: Caller, *, exact: bool = False, evaluates: bool = False
    ) -> tuple[ModelName, Pinned | None]:
        """The role that a model's name stands for, with its version if the name is a pin. Changes nothing.

        The first of these that fits: an alias; a version of a role that has one; `<role>@UPSTREAM/MODEL`, a model of an
        upstream in the place of the role's policies; a role that has a policy, or that an upstream, the settings or an
        alias name; `<role>_<algorithm>`, the newest version of the role that the algorithm trained; the role of all
        other names, unless the name must be `exact`. A call that `evaluates`, a judge's say, may name `UPSTREAM/MODEL`
        without a role.

        Raises `NotFound` when no engine can answer, `Unavailable` when a lookup fails, and `Forbidden` for another role
        than those of the caller's key, for a version that was refused or has retired, unless the key may `operate`, and
        for a model of an upstream, unless it may `view` which there are.
        """
        model = self._read(self.alias_of(name), exact=exact or name in self._aliases)
        if evaluates and name not in self._aliases and name.partition("/")[0] in self._upstream_models:
            model = ModelName(self._other_role, upstream=name)
        if model.upstream is not None:
            caller.require(KeyScope.INFER, model.role)
            caller.require(KeyScope.VIEW, model.role)
            return model, self._upstream_model(model.upstream)
        if model.version is not None:
            return model, await self._pinned(model, model.version, caller)
        resolved, version = self._served(model, name, exact=exact)
        caller.require(KeyScope.INFER, resolved.role)
        return resolved, version

    async def _pinned(self, model: ModelName, number: int, caller: Caller) -> PolicyVersion:
        caller.require(KeyScope.INFER, model.role)
        version = await self._routes.version(model.role, number)
        if model.digest not in {None, version.digest[:8]}:
            raise NotFound(f"{model.role}@{number} has another digest; its full name is {version.name}")
        if version.stage not in _ASKABLE and not caller.allows(KeyScope.OPERATE, model.role):
            raise Forbidden(_NOT_ASKABLE.format(name=version.name, stage=version.stage, role=model.role))
        return version

    def _upstream_model(self, named: str) -> BundleModel:
        upstream, _, model = named.partition("/")
        known = self._upstream_models.get(upstream)
        if known is None:
            there = f"there are {', '.join(self._upstream_models)}" if self._upstream_models else "there is none"
            raise NotFound(f"there is no upstream {upstream!r} in {named!r}: {there} (RATCHET_GATEWAY_UPSTREAMS)")
        if not model or (ANY not in known and model not in known):
            models = ", ".join(sorted(known - {ANY})) or "whatever it is asked for"
            raise NotFound(
                f"the upstream {upstream} is not set to answer with {model!r}: with {models} (`models` and `prices` in"
                " RATCHET_GATEWAY_UPSTREAMS)"
            )
        return BundleModel(upstream=upstream, name=model)

    def _served(self, model: ModelName, name: str, *, exact: bool) -> tuple[ModelName, PolicyVersion | None]:
        variant = self._variant(model.role)
        if variant is not None:
            role, algorithm = variant
            newest = self._routes.newest(role, algorithm)
            if newest is None:
                raise NotFound(f"{role} has no usable version that {algorithm} trained; ask for {role}, or train one")
            return ModelName(role, newest.version), newest
        is_role = model.role == self._other_role or self._is_role(model.role)
        if not is_role and not exact:
            model = ModelName(self._other_role)
        if (exact and not is_role) or not self._is_served(model.role, name):
            raise unserved(name, model.role)
        return model, None

    def role_of(self, name: str) -> str:
        """The role that a model's name stands for, whether something answers for it or not.

        Raises `NotFound` for a version that a role which is known cannot have.
        """
        role = self._read(self.alias_of(name), exact=name in self._aliases).role
        variant = self._variant(role)
        if variant is not None:
            return variant[0]
        return role if self._is_role(role) else self._other_role

    def alias_of(self, name: str) -> str:
        """What an alias stands for, else the name itself."""
        return self._aliases.get(name, name)

    def _read(self, name: str, *, exact: bool) -> ModelName:
        """A name as a role or a version of one. Providers also sell names like `claude@20240229`: they are no pins."""
        role, at, pinned = name.partition("@")
        if "/" in pinned and (role == self._other_role or self._is_role(role)):
            return ModelName(role, upstream=pinned)
        is_ours = exact or self._is_role(role)  # a named one may have versions before its route is known
        try:
            model = parse_model(name)
        except ValueError as error:
            if exact or (at and is_ours):
                raise NotFound(f"unknown model: {error}; GET /v1/models lists the models") from error
            return ModelName(self._other_role)
        return model if model.version is None or is_ours else ModelName(self._other_role)

    def _is_role(self, name: str) -> bool:
        return name in self._named or self._routes.get_route(name) is not None

    def _variant(self, name: str) -> tuple[str, str] | None:
        """(role, algorithm) of `<role>_<algorithm>`, unless that is a role itself."""
        variant = variant_of(name)
        return variant if variant is not None and not self._is_role(name) and self._is_role(variant[0]) else None

    def _is_served(self, role: str, asked: str) -> bool:
        route = self._routes.get_route(role)
        has_policy = route is not None and route.stable is not None
        return has_policy or any(upstream.policy_for(role, asked) for upstream in self._upstreams)


def unserved(name: str, role: str) -> NotFound:
    """The error for a model that nothing answers for; `role`: what it stands for."""
    meant = f"{name!r}" if name == role else f"{name!r}, which stands for the role {role!r}"
    return NotFound(
        f"nothing answers for the model {meant}: ask for one that GET /v1/models lists, train a first policy for "
        f"{role!r}, or have the operator set an upstream for it (RATCHET_GATEWAY_UPSTREAMS), an alias of the name "
        "(RATCHET_GATEWAY_ALIASES), or the role of all names that are no role (RATCHET_GATEWAY_OTHER_ROLE)"
    )
