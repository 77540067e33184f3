// Hints of trajectories since a list was asked for: how many of them are new or changed.

import type { Hint } from "../../api/types.ts";

export interface Seen {
  /** Ids of those that a hint named. */
  readonly named: ReadonlySet<string>;
  /** Those that hints only counted. */
  readonly counted: number;
}

export const NONE_SEEN: Seen = { named: new Set(), counted: 0 };

/** After one more hint. `role`: of the list; "" is all. A hint without a role is about several. */
export function seenAfter(before: Seen, hint: Hint, role: string): Seen {
  const isOurs = hint.kind === "trajectory" && (role === "" || hint.role === null || hint.role === role);
  if (!isOurs) return before;
  if (hint.subject === null) return { ...before, counted: before.counted + hint.count };
  return { ...before, named: new Set([...before.named, hint.subject]) };
}

export function numberOf(seen: Seen): number {
  return seen.named.size + seen.counted;
}
