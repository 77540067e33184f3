"""Gives agents that compose their own prompts the bundle of a trajectory's policy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from urllib.parse import parse_qsl

from ratchet.core.contract.bundle import NO_BUNDLE
from ratchet.core.contract.http.gateway import FetchedBundle
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.errors import Unavailable
from ratchet.core.rules.texts import user_ref
from ratchet.core.service.asgi import Request, Response, json_response
from ratchet.gateway.calls import AskedModel, CallOpener, labels_of, new_id, scope_of
from ratchet.gateway.domain.identity import Asked, names_of, subject_ref
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.routing import claim_of
from ratchet.gateway.unrecorded import RECORD


@dataclass(frozen=True)
class BundleFetcher:
    """Draws the arm as a call would. From then on the agent applies the bundle, or not: the trajectory counts in its
    arm either way, and the gateway writes no texts into its calls."""

    calls: CallOpener
    updates: PeerUpdates

    async def get(self, request: Request, trajectory: str | None) -> Response:
        """GET /v1/bundle?role=&trajectory=&user=&session=: all of them may be absent.

        Raises `NotFound` for a role that nothing answers for, `Forbidden` for one that is not the caller's, and
        `Unavailable` for a bundle that was not read yet.
        """
        calls, given = self.calls, dict(parse_qsl(request.query))
        role, owner = given.get("role", DEFAULT_ROLE), request.caller.key_id or ""
        names = names_of(request.header, given.get("trajectory") or trajectory)
        if not (names.header or names.path or names.run):
            names = names_of(request.header, new_id())
        asking = Asked(scope_of(request), names, {}, b"", list, owner)
        subject = partial(subject_ref, asking, given.get("user"), given.get("session"), calls.subject_key)
        model = AskedModel(role, "role", role, exact=True)
        user = user_ref(calls.user_key, given.get("user"))
        labels = labels_of(request)._replace(session=given.get("session"))
        _, arm, choice = await calls.draw(model, asking, request.caller, subject, labels.refs(user), off=labels.off)
        policy, claim = choice.assignment.policy, claim_of(arm.role, choice.assignment, mixed=arm.mixed)
        if policy.bundle and choice.bundle is None:
            raise Unavailable(f"the gateway has not read the bundle of {policy.name}")
        arm.fetched = True
        self.updates.changed(arm)
        return json_response(
            FetchedBundle(
                trajectory_id=arm.trajectory_id,
                role=arm.role,
                policy=policy.name,
                version=policy.version,
                digest=policy.digest,
                arm=claim.arm,
                weight=claim.weight,
                bundle=choice.bundle.bundle if choice.bundle is not None else NO_BUNDLE,
            ),
            headers=[(RECORD, b"off")] if arm.unrecorded else [],
        )
