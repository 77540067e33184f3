// Where a person acts on what needs them. Nothing here touches the page.

import type { Attention } from "../../api/types.ts";
import { href } from "../../route.ts";

export interface Act {
  readonly text: string;
  readonly link: string;
}

const ROLLOUT = new Set(["approval", "held", "suspended", "paused", "rollout_fault", "late", "candidate"]);
const TEXTS: Readonly<Record<string, string>> = {
  approval: "Look and approve", held: "Look and decide", suspended: "Look and decide", paused: "Look and resume", rollout_fault: "See the rollout", late: "See the rollout",
  candidate: "See why",
};

export function actFor(one: Attention): Act {
  if (ROLLOUT.has(one.kind) && one.role !== null) return { text: TEXTS[one.kind] ?? "See the rollout", link: href("rollouts", one.role) };
  if (one.kind === "job") return { text: "See the job", link: one.subject === null ? href("training") : href("training", one.subject) };
  if (one.kind === "ledger" || one.kind === "lag") return { text: "See the streams", link: href({ focus: "streams" }) };
  if (one.kind === "alert" && one.role !== null) return { text: "See the role's rollout", link: href("rollouts", one.role) };
  return { text: "See the services", link: href({ focus: "services" }) };
}
