// What people think of a trajectory: what one of them gives, and how it reads. Members of events that have their
// default are absent. Nothing here touches the page.

import type { ConsoleSchemas, Session } from "../api/types.ts";

export type Feedback = ConsoleSchemas["Feedback"];
export type Kind = "thumbs" | "rating" | "comment" | "correction";
export type Value = boolean | number | string;

/** What the pages send to the gateway. */
export interface FeedbackIn {
  readonly trajectory_id: string;
  readonly role: string;
  readonly kind: Kind;
  readonly value: Value;
  readonly source: "console";
  readonly rater: string;
}

export function feedbackOf(trajectory: { trajectory_id: string; role: string }, kind: Kind, value: Value, who: Session): FeedbackIn {
  return { trajectory_id: trajectory.trajectory_id, role: trajectory.role, kind, value, source: "console", rater: who.name };
}

/** The newest thumb and stars of this person: giving another one replaces it. */
export function ownOpinion(feedback: readonly Feedback[], who: Session): { thumbs: boolean | null; rating: number | null } {
  const own = feedback.filter((one) => (who.key_id === null || one.key_id === who.key_id) && one.rater === who.name);
  const newest = (kind: string) => own.filter((one) => one.kind === kind).sort((a, b) => Date.parse(b.at) - Date.parse(a.at))[0]?.value;
  const [thumbs, rating] = [newest("thumbs"), newest("rating")];
  return { thumbs: typeof thumbs === "boolean" ? thumbs : null, rating: typeof rating === "number" ? rating : null };
}

/** What was given, in words. */
export function given(kind: string, value: Value | null | undefined): string {
  if (kind === "thumbs") return value === true ? "thumbs up" : "thumbs down";
  if (kind === "rating") return `${String(value)} of 5 stars`;
  if (kind === "abandoned") return "abandoned the conversation";
  if (kind === "update") return "the trajectory was reported again, with facts that came late";
  if (kind === "judgement") return `a judge's score: ${typeof value === "number" ? value.toFixed(2) : "?"}`;
  if (kind === "flag") return `a filter met something in the ${String(value).replace("_", " ")}`;
  if (typeof value === "number") return `${kind.replace("_", " ")}: ${String(value)}`;
  if (kind === "correction") return value == null ? "said that the answer is wrong" : "a correction";
  return `${/^[aeiou]/.test(kind) ? "an" : "a"} ${kind.replace("_", " ")}`;
}

/** Who gave it, and where. */
export function giver(one: Feedback): string {
  const who = one.rater ?? (one.user_ref == null ? one.kind === "update" ? "Ratchet" : "somebody" : "an end user");
  return one.source == null ? who : `${who}, ${one.source}`;
}

/** The text of feedback that has one. */
export function textOf(one: Feedback): string | null {
  if (one.kind === "judgement" || one.kind === "flag") return one.reasoning ?? null;
  return typeof one.value === "string" && one.value !== "" ? one.value : null;
}
