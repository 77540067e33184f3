// A rollout's figures as pages show them: its track, its evidence over time, its arms. Nothing here touches the page.

import type { DecisionPoint, Rollout } from "../../api/types.ts";
import type { Limit, Series } from "../../charts/line.tsx";
import { dollars, duration, measure, plural, share, signedShare, words } from "../../format.ts";

export const ENDED = new Set(["promoted", "rolled_back", "refused", "aborted", "withdrawn", "superseded", "reverted"]);
export const BEFORE_TRAFFIC = new Set(["gating", "awaiting_approval"]);

/** Whether its canary ever took part. */
export function hadTraffic(rollout: Rollout): boolean {
  return rollout.arms.canary.started > 0 || Object.keys(rollout.differences).length > 0 || !(BEFORE_TRAFFIC.has(rollout.state) || ENDED.has(rollout.state));
}

export interface Step {
  readonly name: string;
  readonly detail: string;
  readonly state: "done" | "now" | "stopped" | "ahead" | "failed";
}

/** Gates, stages with their shares of traffic, soak, end: what is behind, where it is, what is ahead. */
export function track(rollout: Rollout, decisions: readonly DecisionPoint[]): Step[] {
  const { state } = rollout;
  const known = rollout.forecast?.expected_days_by_stage.length;
  // Whoever is behind the last stage soaks, or stopped there.
  const isInSoak = state === "soaking" || rollout.stage >= (known ?? Infinity);
  const count = known ?? (isInSoak ? rollout.stage : rollout.stage + 1);
  const isPastStages = isInSoak || state === "promoted";
  const hadTraffic = !BEFORE_TRAFFIC.has(state) && state !== "refused" && state !== "aborted";
  const weights = new Map(decisions.filter((decision) => decision.weight > 0 && decision.verdict !== "suspend").map((decision) => [decision.stage, decision.weight]));
  const stages = state === "reverted" ? [] : Array.from({ length: count }, (_, place): Step => ({
    name: `Stage ${place + 1}`,
    detail: stageDetail(rollout, place, weights.get(place)),
    state: isPastStages || (hadTraffic && place < rollout.stage) ? "done" : place !== rollout.stage || !hadTraffic ? "ahead" : standingAt(state),
  }));
  const soak: Step = {
    name: "Soak", detail: isInSoak && !ENDED.has(state) ? `${share(rollout.weight)} canary` : "hold-back is compared",
    state: state === "promoted" ? "done" : isInSoak ? standingAt(state) : "ahead",
  };
  return [gates(rollout), ...stages, soak, end(state)];
}

function gates(rollout: Rollout): Step {
  const { state } = rollout;
  const failed = state === "refused" || state === "aborted";
  const passed = rollout.gates.filter((gate) => gate.outcome === "passed").length;
  return {
    name: "Gates",
    detail: rollout.progress ?? (rollout.gates.length === 0 ? "none has run" : `${passed} of ${rollout.gates.length} passed`),
    state: failed ? "failed" : BEFORE_TRAFFIC.has(state) ? "now" : "done",
  };
}

function stageDetail(rollout: Rollout, place: number, known: number | undefined): string {
  if (place === rollout.stage && rollout.state === "suspended") return `${share(rollout.weight)} canary`;
  const weight = place === rollout.stage && !ENDED.has(rollout.state) && !BEFORE_TRAFFIC.has(rollout.state) && rollout.state !== "soaking" ? rollout.weight : known;
  const days = ENDED.has(rollout.state) ? undefined : rollout.forecast?.expected_days_by_stage[place];
  const parts = [weight === undefined || weight === 0 ? null : `${share(weight)} canary`, days === undefined ? null : `about ${duration(rough(days * 86_400))}`];
  return parts.filter((part) => part !== null).join(", ") || "not begun";
}

/** To the hour, where there are several. */
export function rough(seconds: number): number {
  return seconds < 7200 ? seconds : Math.round(seconds / 3600) * 3600;
}

function standingAt(state: string): Step["state"] {
  if (state === "rolled_back" || state === "withdrawn") return "failed";
  return state === "superseded" ? "done" : state === "suspended" ? "stopped" : "now";
}

function end(state: string): Step {
  if (state === "promoted" || state === "reverted") return { name: words(state), detail: "serves the role", state: "done" };
  if (ENDED.has(state)) return { name: words(state), detail: "stable serves on", state: "failed" };
  return { name: "Promotion", detail: "serves the role", state: "ahead" };
}

export interface SuiteRow {
  readonly suite: string;
  readonly stable: string;
  readonly candidate: string;
  /** With its interval; a dash where nothing was compared. */
  readonly difference: string;
  readonly verdict: string;
}

/** What a gate says of each suite that it had played; none where its evidence has no suites. */
export function suiteRows({ suites }: Readonly<Record<string, unknown>>): SuiteRow[] {
  if (typeof suites !== "object" || suites === null) return [];
  return Object.entries(suites).map(([suite, of]) => {
    const { stable_score, candidate_score, difference, lower_bound, upper_bound, verdict } = (of ?? {}) as Record<string, unknown>;
    const score = (value: unknown) => (typeof value === "number" ? share(value) : "–");
    const points = (value: unknown) => (typeof value === "number" ? signedShare(value) : "?");
    return {
      suite: words(suite), stable: score(stable_score), candidate: score(candidate_score),
      difference: typeof difference === "number" ? `${points(difference)} (${points(lower_bound)} to ${points(upper_bound)})` : "–",
      verdict: typeof verdict === "string" ? verdict : "–",
    };
  });
}

export const FAMILIES = ["rollback", "promotion", "suspension", "tests"] as const;
export type Family = (typeof FAMILIES)[number];

/** E-values at a time, by family and metric. */
export interface Sample {
  readonly at: string;
  readonly e_values: Readonly<Record<string, Readonly<Record<string, number>>>>;
}

/** The e-values of one family over time: those of the decisions, and of the moments between them. */
export function evidenceSeries(family: Family, decisions: readonly DecisionPoint[], between: readonly Sample[]): Series[] {
  const rows = [...decisions, ...between].map((sample) => [Date.parse(sample.at), sample.e_values[family] ?? {}] as const).sort(([a], [b]) => a - b);
  const names = [...new Set(rows.flatMap(([, values]) => Object.keys(values)))];
  names.sort((a, b) => Number(b === "combined") - Number(a === "combined"));
  return names.map((name) => ({
    name: words(name),
    points: rows.flatMap(([at, values]): [number, number][] => (values[name] === undefined ? [] : [[at, Math.max(values[name], 1e-6)]])),
  }));
}

/** By test of a family: the threshold that it has to reach. */
const LIMITS: Readonly<Record<Family, Readonly<Record<string, string>>>> = {
  rollback: { rollback: "rollback" },
  promotion: { promotion: "promotion" },
  suspension: { combined: "rollback", complaints: "complaints", first_call: "first_call", safety: "safety" },
  tests: { complaints: "complaints", first_call: "first_call", safety: "safety", sample_ratio: "sample_ratio" },
};

/** The values that decide, of one family. */
export function limits(family: Family, thresholds: Readonly<Record<string, number>>): Limit[] {
  const known = Object.entries(LIMITS[family]).flatMap(([test, name]) => {
    const value = thresholds[name];
    return value === undefined ? [] : [{ name: `${limitName(test)} at ${measure(value)}`, value }];
  });
  // Several at one height are one line.
  const heights = new Map<number, Limit>();
  for (const one of known) {
    const other = heights.get(one.value);
    heights.set(one.value, other === undefined ? one : { ...one, name: `${other.name.split(" at ")[0]}, ${one.name}` });
  }
  return [...heights.values()];
}

function limitName(name: string): string {
  return { rollback: "rolls back", promotion: "suffices for promotion", sample_ratio: "sample ratio holds" }[name] ?? words(name);
}

export type Difference = Rollout["differences"][string];
export type ShareDifference = NonNullable<Difference["by_share"]>[number];

export interface DifferenceRow {
  readonly metric: string;
  readonly whole: Difference;
  /** In the order of `sharesOf`. */
  readonly shares: readonly (ShareDifference | null)[];
}

/** The canary's shares of traffic that any of the differences has, smallest first. */
export function sharesOf(differences: Readonly<Record<string, Difference>>): number[] {
  return [...new Set(Object.values(differences).flatMap((one) => (one.by_share ?? []).map((part) => part.weight)))].sort((a, b) => a - b);
}

export function differenceRows(differences: Readonly<Record<string, Difference>>): DifferenceRow[] {
  const shares = sharesOf(differences);
  return Object.entries(differences).map(([metric, whole]) => ({
    metric, whole,
    shares: shares.map((weight) => whole.by_share?.find((part) => part.weight === weight) ?? null),
  }));
}

/** What is known about a difference and its margin; without limits, what is seen. */
export function standing({ difference, margin, low, high }: Difference): "within" | "beyond" | "not clear yet" {
  if ((high ?? difference) <= margin) return "within";
  return (low ?? difference) > margin ? "beyond" : "not clear yet";
}

/** Whether a metric's differences are relative to stable's mean. */
export function isRelative(metric: string): boolean {
  return metric === "cost";
}

type Arm = Rollout["arms"]["stable"];

/** How the figures of an arm are called, those that are not called by their names; and their order. */
const FIGURES: Readonly<Record<string, string>> = {
  started: "Started", trajectories: "Settled", failures: "Failures", failure_rate: "Failure rate", missing: "Outcome missing",
  unscored: "Without a reward", reward_mean: "Mean reward", cost_usd: "Mean cost", unpriced: "Without a price", calls: "Calls",
  error_rate: "Calls that failed", hung_calls: "Calls that hung", engine_faults: "Failed by an engine",
  bundle_applied: "Met the bundle", negative_feedback: "Negative feedback", complaints: "Complaints", safety_violations: "Safety violations", unannounced: "Without a start that counts",
};
const SHARES = new Set(["failure_rate", "error_rate", "bundle_applied", "negative_feedback"]);

export interface ArmRow {
  readonly name: string;
  readonly stable: string;
  readonly canary: string;
}

/** All figures that the deployer has of both arms. */
export function armRows(stable: Arm, canary: Arm): ArmRow[] {
  const [ours, theirs] = [stable, canary] as unknown as Readonly<Record<string, unknown>>[];
  const known = Object.keys(FIGURES).filter((name) => ours?.[name] !== undefined);
  const others = Object.keys(ours ?? {}).filter((name) => FIGURES[name] === undefined);
  return [...known, ...others].map((name) => ({ name: FIGURES[name] ?? words(name), stable: figure(name, ours?.[name]), canary: figure(name, theirs?.[name]) }));
}

function figure(name: string, value: unknown): string {
  if (typeof value !== "number") return typeof value === "string" ? value : "–";
  if (name.endsWith("_usd")) return dollars(value);
  return SHARES.has(name) ? share(value) : Number.isInteger(value) ? value.toLocaleString("en") : measure(value);
}

/** What is known of the cost of trajectories, in a sentence; null where the deployer says nothing of it. */
export function costWords(rollout: Rollout): string | null {
  const { cost } = rollout as Rollout & { readonly cost?: { readonly cap_usd?: number | null; readonly basis: string } | null };
  if (cost == null) return null;
  return cost.cap_usd == null ? `not compared: ${cost.basis}` : `compared up to ${dollars(cost.cap_usd)} a trajectory: ${cost.basis}`;
}

/** What is compared of complaints, in a sentence; null where the deployer says nothing of them. */
export function complaintWords({ complaints }: Rollout): string | null {
  if (complaints == null) return null;
  return `compared: more than ${measure(1 + complaints.margin)} times as many as stable's are worse; a metric needs ${share(complaints.more_evidence)} more evidence for it`;
}

export interface SampleRatio {
  readonly expected: number;
  readonly seen: number | null;
  readonly eValue: number;
  readonly threshold: number | null;
}

/** The canary's share of started trajectories beside the share that the route gives it now. */
export function sampleRatio(rollout: Rollout): SampleRatio {
  const { stable, canary } = rollout.arms;
  const started = stable.started + canary.started;
  return {
    expected: rollout.weight,
    seen: started === 0 ? null : canary.started / started,
    eValue: rollout.e_values["tests"]?.["sample_ratio"] ?? 1,
    threshold: rollout.thresholds["sample_ratio"] ?? null,
  };
}

export type Act = "approve" | "pause" | "resume" | "promote" | "rollback" | "revert" | "start";

export interface ActWords {
  readonly name: string;
  readonly done: string;
  readonly what: string;
  readonly isDangerous: boolean;
  /** What the second tick waives. */
  readonly override: string | null;
}

export const ACTS: Readonly<Record<Act, ActWords>> = {
  approve: { name: "Approve", done: "Approved", what: "The canary starts with its first stage.", isDangerous: false, override: null },
  pause: { name: "Pause", done: "Paused", what: "The stage freezes with its share of traffic; a rollback is still possible.", isDangerous: false, override: null },
  resume: { name: "Resume", done: "Resumed", what: "It goes on where it stopped; a suspended canary begins its stage again, and the test that suspended it has to come as far once more. A queue that was parked goes on too.", isDangerous: false, override: null },
  promote: { name: "Promote", done: "Promoted", what: "The canary becomes stable now and serves all traffic of the role.", isDangerous: true, override: "Promote past an undecided canary. The record calls it an emergency override." },
  rollback: { name: "Roll back", done: "Rolled back", what: "The canary gets no traffic, or no more of it; stable serves all of it at once.", isDangerous: true, override: null },
  revert: { name: "Revert", done: "Reverted", what: "Undoes the last promotion, whatever runs: the policy before it serves again, and no candidate starts until somebody resumes the queue.", isDangerous: true, override: null },
  start: { name: "Start a rollout", done: "Started", what: "The version passes its gates and then gets traffic stage by stage.", isDangerous: false, override: "Waive the gates that can be waived. The record calls it an emergency override." },
};

/** What can be done in a state. The deployer decides; these are the buttons that make sense. */
export function actsFor(rollout: Rollout | null): Act[] {
  if (rollout === null || ENDED.has(rollout.state)) return [...(rollout?.parked === true ? (["resume"] as const) : []), "start", "revert"];
  const acts: Readonly<Record<string, Act[]>> = {
    gating: ["rollback"], awaiting_approval: ["approve", "rollback"], running: ["pause", "promote", "rollback"],
    paused: ["resume", "promote", "rollback"], held: ["resume", "promote", "rollback"],
    suspended: ["resume", "promote", "rollback"], soaking: ["promote", "rollback"],
  };
  return [...(acts[rollout.state] ?? []), "revert"];
}

/** What a dry run would change, in lines. */
export function changes(before: Rollout | null, after: Rollout): string[] {
  const lines: string[] = [];
  const add = (name: string, old: string | null, fresh: string) => {
    if (old !== fresh) lines.push(old === null ? `${name}: ${fresh}` : `${name}: ${old} → ${fresh}`);
  };
  const same = before !== null && before.rollout_id === after.rollout_id ? before : null;
  if (same === null) lines.push(`A new rollout of ${after.candidate.name}`);
  add("State", same === null ? null : words(same.state), words(after.state));
  add("Canary's share of traffic", same === null ? null : share(same.weight), share(after.weight));
  if (same !== null) add("Stage", String(same.stage + 1), String(after.stage + 1));
  add("Approval", same === null ? null : words(same.approval), words(after.approval));
  if (after.parked !== (same?.parked ?? false)) lines.push(after.parked ? "No candidate starts until the queue is resumed" : "The queue goes on");
  const open = after.waiting_for.length;
  if (open > 0 && same === null) lines.push(`Then it waits for ${plural(open, "condition")}`);
  return lines;
}
