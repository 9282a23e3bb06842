"""Keeps this installation's claim, a Lease, and watches for other installations that serve the same namespaces."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_operator import errors
from dtj_operator.kube.event_recorder import micro_time
from dtj_operator.kube.leases import LeaseClient
from dtj_operator.kube.resources import LEASE
from dtj_operator.leader import lease_object, overlap
from dtj_operator.leader.overlap import Claim

CALL_SECONDS = 5.0
# The claim can't be kept for this long: act without it, because that is the smaller harm.
PATIENCE_SECONDS = 20.0
EVERYWHERE = "*"
SELECTOR = f"{names.LABEL_CLAIM}=true"

logger = logging.getLogger(__name__)


def claim_name(installation: str) -> str:
    """Returns the name of the claim of `installation`, which is NAMESPACE/NAME of its lease."""
    return f"{names.MANAGER}.{installation.replace('/', '.')}"


class Claims:
    """Implements dtj_operator.leader.leadership.Permit."""

    def __init__(
        self,
        client: LeaseClient,
        namespace: str,
        installation: str,
        served: Sequence[str],
        count: Callable[[int], None] = lambda rivals: None,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Keeps the claim in `namespace`. `count` receives the number of installations that overlap."""
        self.seconds = overlap.RENEW_SECONDS
        self._client = client
        self._namespace = namespace
        self._installation = installation
        self._served = frozenset(served)
        self._count = count
        self._now = now
        self._wall = wall
        self._sightings = overlap.Sightings()
        self._failing_since: float | None = None
        self._permitted = False
        self._shown: list[str] | None = None
        """The rivals that were last logged."""

    async def look(self) -> bool:
        """Renews the claim and looks for others.

        Returns whether this installation may act: no older claim overlaps with its own.
        """
        try:
            own = await self._renew()
            found = await self._client.list(LEASE, self._namespace, SELECTOR)
        except (errors.KubeError, TimeoutError) as error:
            return self._without(error)
        self._failing_since = None
        others = [claim for claim in map(_claim, found) if claim.installation != self._installation]
        alive = self._sightings.alive(others, self._now(), self._wall())
        rivals = overlap.rivals(own, alive)
        self._permitted = overlap.acts(own, alive)
        self._show(own, rivals)
        return self._permitted

    def forget(self) -> None:
        """Forgets everything, because this process does not lead any more."""
        self._sightings = overlap.Sightings()
        self._failing_since, self._permitted, self._shown = None, False, None
        self._count(0)

    async def _renew(self) -> Claim:
        """Writes the claim. Returns it."""
        name, wall = claim_name(self._installation), self._wall()
        try:
            before = await self._client.get(LEASE, self._namespace, name)
        except errors.ObjectNotFound:
            lease = self._lease(lease_object.new(self._namespace, name), None, wall)
            return _claim(await self._client.create(LEASE, self._namespace, lease))
        return _claim(await self._client.replace(self._lease(before, _claim(before), wall), CALL_SECONDS))

    def _lease(self, lease: Object, before: Claim | None, wall: float) -> Object:
        begun = overlap.since(before, self._served, wall, micro_time(wall))
        metadata, spec = lease["metadata"], lease.get("spec") or {}
        labels = (metadata.get("labels") or {}) | {names.LABEL_CLAIM: "true", names.LABEL_MANAGED_BY: names.MANAGER}
        served = ",".join(sorted(self._served)) or EVERYWHERE
        annotations = (metadata.get("annotations") or {}) | {names.ANNOTATION_NAMESPACES: served}
        spec = spec | {
            "holderIdentity": self._installation,
            "leaseDurationSeconds": round(overlap.CLAIM_SECONDS),
            "acquireTime": begun,
            "renewTime": micro_time(wall),
        }
        return lease | {"metadata": metadata | {"labels": labels, "annotations": annotations}, "spec": spec}

    def _without(self, error: Exception) -> bool:
        """Returns whether to act although the claim could not be kept or the others not be listed."""
        now = self._now()
        first, self._failing_since = self._failing_since is None, self._failing_since or now
        refused = isinstance(error, errors.Forbidden | errors.ObjectNotFound)
        if first:
            logger.warning(
                "the claim in namespace %s can't be kept, so installations that overlap are not noticed: %s",
                self._namespace,
                str(error) or "no answer in time",
            )
        if refused or now - self._failing_since >= PATIENCE_SECONDS:
            self._permitted = self._permitted or self._shown is None
        return self._permitted

    def _show(self, own: Claim, rivals: list[Claim]) -> None:
        """Reports the rivals, when they change."""
        self._count(len(rivals))
        shown = [rival.installation for rival in rivals]
        if shown == self._shown:
            return
        if rivals:
            level, result = (logging.WARNING, "acts, and they wait") if self._permitted else (logging.ERROR, "waits")
            others = ", ".join(f"{rival.installation} (in {own.where(rival)})" for rival in rivals)
            logger.log(
                level,
                "installations overlap: %s serves the same namespaces as %s; this one %s. Uninstall all but one, or "
                "let each serve namespaces of its own (--namespace)",
                self._installation,
                others,
                result,
            )
        elif self._shown:
            logger.info("no other installation serves the same namespaces any more")
        self._shown = shown


def _claim(lease: Object) -> Claim:
    metadata, spec = lease["metadata"], lease.get("spec") or {}
    served = (metadata.get("annotations") or {}).get(names.ANNOTATION_NAMESPACES, EVERYWHERE)
    return Claim(
        installation=spec.get("holderIdentity") or metadata["name"],
        namespaces=frozenset() if served == EVERYWHERE else frozenset(served.split(",")),
        since=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        version=metadata["resourceVersion"],
    )
