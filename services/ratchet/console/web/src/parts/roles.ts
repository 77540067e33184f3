// The roles of this installation, as the loop knows them.

import { loop } from "../api/live.ts";
import { useStore } from "../store.ts";

/** Their names; `chosen` is among them even where the loop does not know it. */
export function useRoles(chosen = ""): readonly string[] {
  const known = useStore(loop)?.roles.map((one) => one.role) ?? [];
  return chosen === "" || known.includes(chosen) ? known : [...known, chosen];
}

/** Options of a field that chooses a role. */
export function roleOptions(roles: readonly string[], none: string): readonly (readonly [string, string])[] {
  return [["", none], ...roles.map((role) => [role, role] as const)];
}
