// Patterns and plans in words and in order. Nothing here touches the page.

import type { AnalystSchemas } from "../../api/types.ts";
import { dollars, measure, words } from "../../format.ts";

export type Pattern = AnalystSchemas["Pattern"];
export type Plan = AnalystSchemas["AdaptationPlan"];
export type LearningEvent = AnalystSchemas["LearningEvent"];

export interface Step {
  readonly at: string;
  readonly name: string;
  readonly text: string;
}

/** Each with the newest of its plans, in the order of the patterns: the dearest first. */
export function withPlans(patterns: readonly Pattern[], plans: readonly Plan[]): { pattern: Pattern; plan: Plan | null }[] {
  return patterns.map((pattern) => ({ pattern, plan: plans.find((plan) => plan.pattern_id === pattern.pattern_id) ?? null }));
}

/** What it costs, of the last window. */
export function costOf({ reward_cost: reward = 0, cost_usd: usd = 0 }: Pattern): string {
  return [...(reward > 0 ? [`${measure(reward)} of reward`] : []), ...(usd > 0 ? [dollars(usd)] : [])].join(", ") || "–";
}

/** A difference, with its interval where it has one: failure +0.2 (0.1 to 0.3). */
export function effectText(of: string, value: number, { low, high }: { low: number; high: number }): string {
  const interval = low < high ? ` (${measure(low)} to ${measure(high)})` : "";
  return `${words(of)} ${value > 0 ? "+" : ""}${measure(value)}${interval}`;
}

/** What a plan promises at most. */
export function promiseText({ measure: of, value, low, high }: Plan["expected"]): string {
  return value === 0 ? "nothing that arms compare" : `at most ${effectText(of, value, { low, high })}`;
}

/** Good only where the arms show that it helped, of whatever became of its policy. */
export function toneOf({ state, expected, effect }: Plan): "good" | "info" | "warn" {
  if (state === "rolled_back") return "warn";
  if (effect == null) return "info";
  const [low, high] = ["reward", "feedback"].includes(expected.measure) ? [effect.low, effect.high] : [-effect.high, -effect.low];
  return low > 0 ? "good" : high < 0 ? "warn" : "info";
}

/** Which trajectories it is about. */
export function triggersText({ triggers = [], role }: Pattern): string {
  return triggers.map((each) => `${words(each.attribute)} ${each.value}`).join(" and ") || `all of ${role}`;
}

/** The steps of a pattern and its plans, the oldest first. Where the stream has forgotten a plan's events: its history. */
export function trailOf(pattern: Pattern, plans: readonly Plan[], events: readonly LearningEvent[]): Step[] {
  const ids = plans.map((plan) => plan.plan_id);
  const own = events.filter((event) => event.plan_id == null ? event.pattern_id === pattern.pattern_id : ids.includes(event.plan_id));
  const forgotten = plans.filter((plan) => !own.some((event) => event.plan_id === plan.plan_id)).flatMap((plan) => plan.history);
  return [
    ...own.map((event) => ({ at: event.at, name: `${words(event.phase)}: ${words(event.what)}`, text: event.summary })),
    ...forgotten.map((step) => ({ at: step.at, name: `plan: ${words(step.state)}`, text: [step.by, step.reason].filter((each) => each != null).join(": ") })),
  ].sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
}
