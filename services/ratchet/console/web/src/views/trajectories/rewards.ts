// Rewards in words: what each component says, and what a later revision changed. Members of events that have their
// default are absent. Nothing here touches the page.

import type { ConsoleSchemas } from "../../api/types.ts";
import { measure, share, signed, words } from "../../format.ts";

export type Reward = ConsoleSchemas["Reward"];

/** The number of its revision: the first is 0. */
export function revisionOf(reward: Reward): number {
  return reward.revision ?? 0;
}

function applies(part: { readonly applicable?: boolean }): boolean {
  return part.applicable !== false;
}

export interface ComponentLine {
  readonly name: string;
  /** From 0 to 1; null: it does not apply. */
  readonly score: number | null;
  readonly weight: string;
  readonly source: string;
  readonly why: string | null;
}

/** Components, those that weigh most first, those that do not apply last. */
export function componentsOf(reward: Reward): ComponentLine[] {
  const parts = Object.entries(reward.reward_components);
  const all = parts.reduce((sum, [, part]) => sum + (applies(part) ? part.weight : 0), 0);
  return parts
    .sort(([, a], [, b]) => Number(applies(b)) - Number(applies(a)) || b.weight - a.weight)
    .map(([name, part]) => ({
      name: words(name),
      score: applies(part) ? part.score : null,
      weight: applies(part) ? (all > 0 ? `weighs ${share(part.weight / all)}` : "weighs nothing") : "does not apply",
      source: words(part.source),
      why: part.reasoning ?? null,
    }));
}

/** Whether something was known to judge by. */
export function hasEvidence(reward: Reward): boolean {
  return Object.values(reward.reward_components).some(applies);
}

/** What this revision changed in the one before, in a sentence; null for the first. */
export function revisionText(reward: Reward, before: Reward | undefined): string | null {
  if (before === undefined) return null;
  const changed = Object.entries(reward.reward_components).flatMap(([name, part]) => {
    const old = before.reward_components[name];
    const [now, then] = [applies(part) ? part.score : null, old !== undefined && applies(old) ? old.score : null];
    if (now === then) return [];
    if (then === null) return [`${words(name)} is known now: ${measure(now)}`];
    return [now === null ? `${words(name)} does not apply any more` : `${words(name)} went from ${measure(then)} to ${measure(now)}`];
  });
  const functions = functionName(reward) === functionName(before) ? [] : [`computed by ${functionName(reward)}, before by ${functionName(before)}`];
  const total = reward.total_reward === before.total_reward ? "the total stayed" : `the total changed by ${signed(reward.total_reward - before.total_reward)}`;
  return [...changed, ...functions, total].join("; ");
}

export function functionName(reward: Reward): string {
  const made = reward.reward_function;
  return made == null ? "an unnamed function" : `${made.name} ${made.version}`;
}
