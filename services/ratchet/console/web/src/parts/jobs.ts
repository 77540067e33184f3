// Training jobs in words: their order, their progress, what stops them. Nothing here touches the page.

import type { CoordinatorSchemas } from "../api/types.ts";
import { duration, measure, words } from "../format.ts";

export type Job = CoordinatorSchemas["JobOut"];

const UNDER_WAY = new Set(["dispatched", "running"]);
const ENDED = new Set(["completed", "failed", "cancelled"]);
/** A worker reports every two seconds; after 30 s of silence its attempt is given away. */
const LATE_S = 10;
export const LEASE_S = 30;

export function isActive(job: Job): boolean {
  return UNDER_WAY.has(job.state);
}

export function hasEnded(job: Job): boolean {
  return ENDED.has(job.state);
}

/** Those that run first, then those that wait, then the others; newest first among each. */
export function inOrder(jobs: readonly Job[]): Job[] {
  const rank = (job: Job) => (isActive(job) ? 0 : hasEnded(job) ? 2 : 1);
  return [...jobs].sort((a, b) => rank(a) - rank(b) || Date.parse(b.created_at) - Date.parse(a.created_at));
}

/** How far it is, from 0 to 1; null where that is not known. */
export function doneShare(job: Job): number | null {
  if (job.state === "completed") return 1;
  const percent = job.progress?.percent_complete;
  if (percent != null) return percent / 100;
  const { current_step: step, total_steps: total } = job.progress ?? {};
  return step != null && total != null && total > 0 ? step / total : null;
}

export function progressText(job: Job): string {
  const { current_step: step, total_steps: total, eta_seconds: eta } = job.progress ?? {};
  if (step == null) return job.state === "running" ? "begins" : words(job.state);
  const place = total == null ? `train step ${step}` : `train step ${step} of ${total}`;
  return eta != null && isActive(job) ? `${place}, ${duration(eta)} left` : place;
}

/** How long it took, or takes so far. */
export function tookSeconds(job: Job, now: number): number | null {
  if (job.started_at == null) return null;
  const end = job.finished_at == null ? now : Date.parse(job.finished_at);
  return Math.max(0, (end - Date.parse(job.started_at)) / 1000);
}

/** A line of what a job came to: its error, why it stopped, or its last figures. */
export function resultText(job: Job): string {
  if (job.error != null && job.state !== "completed") return `${job.error.code ?? "UNKNOWN"}: ${job.error.message ?? ""}`;
  if (job.cancel_requested && isActive(job)) return `cancel asked for by ${job.cancelled_by ?? "somebody"}`;
  if (job.health_stop != null) return `stopped: ${words(job.health_stop.figure)}`;
  const { reward_mean: reward, loss, accuracy } = job.metrics ?? {};
  const figures = [reward == null ? null : `mean reward ${measure(reward)}`, loss == null ? null : `loss ${measure(loss)}`, accuracy == null ? null : `accuracy ${measure(accuracy)}`];
  return figures.filter((figure) => figure !== null).join(", ");
}

/** Seconds since the worker was heard, of a job that a worker has. */
export function silence(job: Job, now: number): number | null {
  return job.state === "running" && job.heartbeat_at != null ? Math.max(0, (now - Date.parse(job.heartbeat_at)) / 1000) : null;
}

/** What a silent worker means; null while it is heard. */
export function heartbeatWarning(job: Job, now: number): string | null {
  const seconds = silence(job, now);
  if (seconds === null || seconds < LATE_S) return null;
  const name = job.worker ?? "the worker";
  return seconds < LEASE_S
    ? `${name} was not heard for ${duration(seconds)}. It reports every 2 s; after ${LEASE_S} s its attempt is given away.`
    : `${name} was not heard for ${duration(seconds)}: the coordinator gives its attempt away, and the next one goes on from the newest checkpoint.`;
}

export interface Stage {
  readonly name: string;
  readonly state: "done" | "now" | "to come";
  readonly text: string;
}

const HOW: Readonly<Record<string, string>> = {
  after_step: "it stops after its train step, and keeps a checkpoint",
  now: "it ends the training at once",
};

/** What the worker said about the cancel; null while it has said nothing. */
function acknowledged(job: Job): Stage | null {
  const worker = job.worker ?? "the worker";
  if (job.stopping != null) return { name: "Acknowledged", state: "done", text: `by ${worker}: ${HOW[job.stopping] ?? words(job.stopping)}` };
  if (job.worker == null && hasEnded(job)) return { name: "Acknowledged", state: "done", text: "no worker had it" };
  return hasEnded(job) ? { name: "Not acknowledged", state: "done", text: `${worker} did not say that it stops` } : null;
}

/** The stages of a cancel; none where no person has asked for one. */
export function cancelStages(job: Job, now: number): Stage[] {
  if (!job.cancel_requested) return [];
  const how = job.cancel_now ? "an end at once" : "after its train step, with a checkpoint";
  const asked: Stage = { name: "Asked for", state: "done", text: `by ${job.cancelled_by ?? "somebody"}: ${how}` };
  const read = acknowledged(job);
  if (job.state === "cancelled") {
    const kept = job.artifacts?.checkpoint == null ? "it makes no policy" : "it makes no policy; its checkpoint is kept";
    return [asked, ...(read === null ? [] : [read]), { name: "Cancelled", state: "done", text: kept }];
  }
  if (hasEnded(job)) return [asked, { name: "Too late", state: "done", text: `it had ${job.state} before the worker stopped` }];
  const seconds = silence(job, now);
  const heard = seconds === null ? "no worker has begun yet" : `heard ${seconds < 2 ? "just now" : `${duration(seconds)} ago`}`;
  const isRead = read !== null && (!job.cancel_now || job.stopping === "now");
  const end: Stage = { name: "Cancelled", state: isRead ? "now" : "to come", text: `when it has stopped, or after ${LEASE_S} s of silence` };
  return [asked, isRead ? read : { name: "Waits for the worker", state: "now", text: heard }, end];
}
