"""One stored trajectory and what belongs to it: its roles, its rewards and feedback, the run that it is a part of, its
calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ratchet.bus.message import Message, decode
from ratchet.core.contract import Feedback, Reward, Trajectory, Turn
from ratchet.core.errors import BadRequest, NotFound
from ratchet.core.rules.access import RoleSet

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Row, Warehouse

M = TypeVar("M", bound=Message)

ALL = 2**31
"""More than a table holds of one trajectory."""
LEFT_OUT = ("prompt_token_ids", "output_token_ids", "behavior_logprobs", "tools")
"""Members of a call that no reader of its conversation needs; they are most of it."""

_OF_ONE = "trajectory_id = {id:String} AND ({role:String} = '' OR role = {role:String})"
_ROLES = """
SELECT DISTINCT role FROM (
    SELECT role FROM trajectories WHERE trajectory_id = {id:String}
    UNION ALL SELECT role FROM turns WHERE trajectory_id = {id:String}
) ORDER BY role
"""
_OF_RUN = """(
    trajectory_id IN {ids:Array(String)} OR recorded_as IN {ids:Array(String)}
    OR parent_trajectory_id IN {ids:Array(String)}
)"""
_RUN = f"""
SELECT * FROM (
    SELECT trajectory_id, parent_trajectory_id, recorded_as, role, agent_id, turn_count AS turns, outcome, started_at
    FROM trajectories WHERE (role, trajectory_id) IN (SELECT role, trajectory_id FROM trajectories WHERE {_OF_RUN})
    ORDER BY ingested_at DESC LIMIT 1 BY role, trajectory_id
)
WHERE {_OF_RUN}
ORDER BY started_at, trajectory_id, role
LIMIT {{limit:UInt32}}
"""  # noqa: S608 - our own names
"""The trajectories of a run: those recorded under one id, and those that name one of them as their parent. Candidates
come without `FINAL`, which would merge the whole table; then the newest report of each counts."""
_MEMBERS = (
    "concat('{', arrayStringConcat(arrayMap(x -> concat('\"', x.1, '\":', x.2),"
    " arrayFilter(x -> NOT has({left_out:Array(String)}, x.1), JSONExtractKeysAndValuesRaw(body))), ','), '}')"
)
"""The body of a call without some of its members: these texts never leave ClickHouse."""
_CONVERSATION = f"""
SELECT if(JSONHas(body, 'turn_id'), {_MEMBERS}, body) AS shortened
FROM turns FINAL WHERE role = {{role:String}} AND trajectory_id = {{id:String}}
ORDER BY turn_index, attempt, at, turn_id LIMIT {{limit:UInt32}}
"""  # noqa: S608 - our own names
_NAMES = """
SELECT max(trajectory_name) AS name,
    arraySort(groupUniqArrayIf(toString(provider_model), provider_model != '')) AS models
FROM turns WHERE role = {role:String} AND trajectory_id = {id:String}
"""
_FAILED = """
SELECT turn_index AS call, policy_version AS version, arm, substring(error, 1, 4000) AS error
FROM turns FINAL WHERE role = {role:String} AND trajectory_id = {id:String} AND error != ''
ORDER BY turn_index, attempt, at, turn_id LIMIT {limit:UInt32}
"""
_CALLS = """
SELECT turn_id, turn_index, attempt, at, role, policy_version, arm, provider_model, latency_ms, first_token_ms,
    prompt_tokens, completion_tokens, cost_usd, finish_reason, substring(error, 1, 4000) AS error, trainable,
    coalesce(nullIf(toString(reason), ''), 'unknown') AS bar, answered,
    JSONExtractString(body, 'engine', 'name') AS engine, JSONHas(body, 'output_token_ids') AS has_tokens,
    JSONExtractString(body, 'applied_by') AS applied_by, JSONHas(body, 'applied') AS is_changed
FROM turns FINAL WHERE role = {role:String} AND trajectory_id = {id:String}
ORDER BY turn_index, attempt, at, turn_id LIMIT {limit:UInt32}
"""


@dataclass(frozen=True, slots=True)
class Branch:
    """A trajectory within the tree of its run."""

    depth: int
    trajectory_id: str
    role: str
    agent_id: str
    turns: int
    outcome: str | None


class StoredTrajectories:
    """Reads trajectories by id. A role of None stands for all of them: an id may be used in several."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def roles_of(self, trajectory_id: str, among: RoleSet) -> list[str]:
        """Those of the roles under which anything of a trajectory is stored: itself, or calls of it."""
        rows = await self._warehouse.rows(_ROLES, {"id": trajectory_id})
        return [row["role"] for row in rows if row["role"] in among]

    async def role_of(self, trajectory_id: str, role: str | None, among: RoleSet) -> str:
        """The role of a trajectory, `among` these. Raises `NotFound`, and `BadRequest` where it has several and none is
        given."""
        roles = await self.roles_of(trajectory_id, among)
        if role is None and len(roles) > 1:
            raise BadRequest(
                f"{trajectory_id} has parts in the roles {', '.join(roles)}: name one `role`", param="role"
            )
        if not roles or role not in (None, *roles):
            raise NotFound(f"no trajectory {trajectory_id} is stored" + (f" in the role {role}" if role else ""))
        return role or roles[0]

    async def newest(self, trajectory_id: str, role: str | None = None) -> Trajectory | None:
        """The trajectory as it was reported last (of several roles, first); None while it has no end."""
        stored = await self._messages("trajectories", Trajectory, ("sequence",), trajectory_id, role, ALL)
        return stored[0] if stored else None

    async def rewards(self, trajectory_id: str, role: str | None = None, newest: int = ALL) -> list[Reward]:
        """Its rewards, oldest revision first, the `newest` ones."""
        return await self._messages("rewards", Reward, ("at", "revision"), trajectory_id, role, newest)

    async def feedback(self, trajectory_id: str, role: str | None = None, newest: int = ALL) -> list[Feedback]:
        """The feedback on it, oldest first, the `newest` pieces."""
        return await self._messages("feedback", Feedback, ("at",), trajectory_id, role, newest)

    async def run(self, ids: Collection[str], among: RoleSet, most: int = ALL) -> list[Branch]:
        """The tree of the run that these ids belong to, of what is `among` the roles, parents first; empty for a single
        trajectory."""
        rows = await self._warehouse.rows(_RUN, {"ids": sorted(ids), "limit": most})
        return tree_of([row for row in rows if row["role"] in among])

    async def conversation(self, role: str, recorded_as: str, most: int) -> list[Turn]:
        """The first calls that were recorded under an id, in order, without what no reader of texts needs."""
        asked = {"role": role, "id": recorded_as, "limit": most, "left_out": list(LEFT_OUT)}
        rows = await self._warehouse.rows(_CONVERSATION, asked)
        return [decode(row["shortened"], Turn) for row in rows]

    async def names(self, role: str, recorded_as: str) -> tuple[str | None, list[str]]:
        """What the agent calls the run that was recorded under an id, and the models that answered its calls."""
        (row,) = await self._warehouse.rows(_NAMES, {"role": role, "id": recorded_as})
        return row["name"] or None, row["models"]

    async def failed(self, role: str, recorded_as: str, most: int) -> list[Row]:
        """The first calls recorded under an id that failed: call, version, arm and error."""
        return await self._warehouse.rows(_FAILED, {"role": role, "id": recorded_as, "limit": most})

    async def calls(self, role: str, recorded_as: str, most: int) -> list[Row]:
        """Facts of the first calls that were recorded under an id, in order."""
        return await self._warehouse.rows(_CALLS, {"role": role, "id": recorded_as, "limit": most})

    async def _messages(
        self, table: str, kind: type[M], order: Sequence[str], trajectory_id: str, role: str | None, newest: int
    ) -> list[M]:
        newest_first = ", ".join(f"{column} DESC" for column in order)
        sql = f"SELECT body FROM {table} FINAL WHERE {_OF_ONE} ORDER BY {newest_first} LIMIT {{limit:UInt32}}"  # noqa: S608 - our own names
        rows = await self._warehouse.rows(sql, {"id": trajectory_id, "role": role or "", "limit": newest})
        return [decode(row["body"], kind) for row in reversed(rows)]


def ancestors(trajectory: Trajectory) -> list[str]:
    """What its run is found by, beside its own id."""
    return [related for related in (trajectory.recorded_as, trajectory.parent_trajectory_id) if related]


def tree_of(rows: Sequence[Row]) -> list[Branch]:
    """The trajectories of a run as a tree, parents first; empty for a single one."""
    ids = {row["trajectory_id"] for row in rows}
    below: dict[str | None, list[Row]] = {}
    for row in rows:
        parent = row["parent_trajectory_id"]
        below.setdefault(parent if parent in ids and parent != row["trajectory_id"] else None, []).append(row)
    branches: list[Branch] = []
    left = [(0, row) for row in reversed(below.pop(None, []))]
    while left:
        depth, row = left.pop()
        left += [(depth + 1, child) for child in reversed(below.pop(row["trajectory_id"], []))]
        branches.append(Branch(depth, row["trajectory_id"], row["role"], row["agent_id"], row["turns"], row["outcome"]))
    return branches if len(branches) > 1 else []
