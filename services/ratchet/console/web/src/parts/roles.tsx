// The roles of this installation, as the loop knows them.

import { loop } from "../api/live.ts";
import { useStore } from "../store.ts";
import { Select } from "../ui/form.tsx";

export function useRoles(): readonly string[] {
  return useStore(loop)?.roles.map((one) => one.role) ?? [];
}

/** Chooses a role, or none of them; the chosen one is among them even where the loop does not know it. */
export function RoleSelect({ value, onValue, none = "all roles", wrong = null }: {
  value: string; onValue: (value: string) => void; none?: string; wrong?: string | null;
}) {
  const options = [...new Set([...useRoles(), value])].filter((role) => role !== "");
  return <Select label="Role" value={value} onValue={onValue} options={[["", none], ...options]} wrong={wrong} />;
}
