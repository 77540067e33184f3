// What a curve says: whether its last value is where it should be, and two jobs over each other.
// Nothing here touches the page.

import type { ConsoleSchemas } from "../../api/types.ts";
import { measure, words } from "../../format.ts";

export type Curve = ConsoleSchemas["CurveOut"];
export type Range = ConsoleSchemas["RangeOut"];
export type Attempt = ConsoleSchemas["AttemptOut"];

/** Those that the reader looks at first; the others follow by name. */
const FIRST = ["reward_mean", "loss", "accuracy", "margin", "auc", "holdout_loss", "kl_divergence", "policy_entropy", "ess", "grad_norm"];

export function inReadingOrder(curves: readonly Curve[]): Curve[] {
  const rank = (curve: Curve) => (FIRST.indexOf(curve.name) + FIRST.length + 1) % (FIRST.length + 1);
  return [...curves].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
}

export function curveName(curve: { readonly name: string }): string {
  return words(curve.name);
}

/** Where it should be: 0.2 to 0.9, at least 0.2, at most 0.9; null where only words say it. */
export function rangeText(good: Range): string | null {
  if (good.low !== null && good.high !== null) return `${measure(good.low)} to ${measure(good.high)}`;
  if (good.low !== null) return `at least ${measure(good.low)}`;
  return good.high === null ? null : `at most ${measure(good.high)}`;
}

/** Whether the last value is in the good range; null: there is none, or no value. */
export function isGood(curve: Curve): boolean | null {
  const last = curve.points.at(-1)?.[1];
  if (curve.good === null || last === undefined || (curve.good.low === null && curve.good.high === null)) return null;
  if (!Number.isFinite(last)) return false;
  return last >= (curve.good.low ?? -Infinity) && last <= (curve.good.high ?? Infinity);
}

export interface Both {
  readonly name: string;
  readonly meaning: string | null;
  readonly good: Range | null;
  readonly one: Curve["points"];
  readonly other: Curve["points"];
}

/** Curves of two jobs by name, those that both have first. */
export function overEachOther(one: readonly Curve[], other: readonly Curve[]): Both[] {
  const others = new Map(other.map((curve) => [curve.name, curve]));
  const own = new Set(one.map((curve) => curve.name));
  const all = inReadingOrder([...one, ...other.filter((curve) => !own.has(curve.name))]).map((curve) => ({
    name: curve.name, meaning: curve.meaning, good: curve.good ?? others.get(curve.name)?.good ?? null,
    one: own.has(curve.name) ? curve.points : [], other: others.get(curve.name)?.points ?? [],
  }));
  const isShared = (curve: Both) => Number(curve.one.length > 0 && curve.other.length > 0);
  return all.sort((a, b) => isShared(b) - isShared(a));
}

/** Members of two requests that differ, by path: `hyperparameters.learning_rate`. */
export function differences(one: unknown, other: unknown): { name: string; one: string; other: string }[] {
  const [left, right] = [flat(one), flat(other)];
  return [...new Set([...left.keys(), ...right.keys()])].sort()
    .map((name) => ({ name, one: left.get(name) ?? "", other: right.get(name) ?? "" }))
    .filter((row) => row.one !== row.other);
}

function flat(value: unknown, name = "", into = new Map<string, string>()): Map<string, string> {
  if (value === null || value === undefined) return into;
  if (typeof value !== "object" || Array.isArray(value)) return into.set(name, typeof value === "string" ? value : JSON.stringify(value));
  for (const [member, inner] of Object.entries(value)) flat(inner, name === "" ? member : `${name}.${member}`, into);
  return into;
}
