// A trajectory's reward, outcome and opinions in little: cells of lists.

import type { ConsoleSchemas } from "../api/types.ts";
import { answeredBy, count, measure, shortId } from "../format.ts";
import { Icon } from "../ui/icons.tsx";
import { Pill, Status } from "../ui/status.tsx";
import { DataText } from "../ui/text.tsx";

export type Brief = ConsoleSchemas["TrajectoryBrief"];

/** What it is called: its own name, else its task, else its first question. */
export function titleOf(brief: Brief): string {
  return brief.name ?? brief.task_id ?? brief.question ?? shortId(brief.trajectory_id);
}

export function Outcome({ brief }: { brief: Brief }) {
  if (brief.outcome !== null) return <Status state={brief.outcome} />;
  return brief.state === "open" ? <Status state="open" /> : <span class="muted">no outcome</span>;
}

export function RewardOf({ brief }: { brief: Brief }) {
  if (brief.reward === null) return <span class="muted">none</span>;
  return <span title={brief.revision !== null && brief.revision > 0 ? `revision ${brief.revision}` : undefined}>{measure(brief.reward)}</span>;
}

export function Thumbs({ value }: { value: number }) {
  if (value === 0) return <span class="muted">–</span>;
  return (
    <span class={`row tight ${value > 0 ? "good" : "bad"}`}>
      <Icon name={value > 0 ? "up" : "down"} size={14} /> {Math.abs(value)}<span class="hidden">{value > 0 ? " more up than down" : " more down than up"}</span>
    </span>
  );
}

/** What answered: a policy; in front of a provider, which has none, its model. */
export function PolicyOf({ brief }: { brief: Brief }) {
  const name = answeredBy(brief.policy, brief.model);
  if (name === null) return <span class="muted">none</span>;
  return (
    <span class="row tight">
      <span class="id"><DataText text={name} /></span>
      {brief.arm !== null && brief.arm !== "stable" && <Pill tone={brief.arm === "canary" ? "accent" : "none"}>{brief.arm}</Pill>}
    </span>
  );
}

export function Calls({ brief }: { brief: Brief }) {
  return <>{count(brief.calls)}{brief.failed_calls > 0 && <span class="bad"> ({count(brief.failed_calls)} failed)</span>}</>;
}
