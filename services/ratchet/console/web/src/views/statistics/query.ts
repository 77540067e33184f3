// Statistics: the form, its place in the address, the request that it stands for, and what of the answer is drawn.
// Nothing here touches the page.

import type { Series } from "../../charts/line.tsx";
import type { ConsoleSchemas } from "../../api/types.ts";
import { count, dollars, duration, measure, share, visible } from "../../format.ts";
import { policyOf, SECONDS } from "../trajectories/search.ts";

export type Statistics = ConsoleSchemas["StatisticsOut"];
export type Group = ConsoleSchemas["GroupOut"];
export type Measures = Omit<Group, "names" | "points">;

/** By what one may group, and filter, as the API names it. */
export const DIMENSIONS = ["agent", "domain", "model", "policy", "role", "profile", "source", "outcome", "arm", "api", "key"] as const;
/** Those by which the list of trajectories filters too. */
const LISTED = new Set<string>(["agent", "domain", "model", "policy", "role", "profile", "source", "outcome", "arm"]);
export const NAMES = ["by", "and", "every", "within", "since", "until", "figure", ...DIMENSIONS] as const;
/** All texts, as the address has them. */
export type Asked = Readonly<Record<(typeof NAMES)[number], string>>;

export const WITHIN: readonly (readonly [string, string])[] = [
  ["24h", "the last 24 hours"], ["", "the last 7 days"], ["30d", "the last 30 days"], ["90d", "the last 90 days"],
];
const DEFAULT_WITHIN = "7d";

export function askedOf(params: Readonly<Record<string, string>>): Asked {
  return Object.fromEntries(NAMES.map((name) => [name, params[name] ?? ""])) as Asked;
}

/** Whether something is asked for that the short form does not show. */
export function isDetailed(asked: Asked): boolean {
  return asked.since !== "" || asked.until !== "" || DIMENSIONS.some((name) => name !== "role" && asked[name] !== "");
}

/** What is wrong with the form, in words; null when it can be asked. */
export function wrongWith(asked: Asked): string | null {
  if (asked.policy !== "" && policyOf(asked.policy) === null) return "A policy is its version: 7, or support@7.";
  if (asked.since !== "" && asked.until !== "" && Date.parse(asked.since) >= Date.parse(asked.until)) return "The time begins after its end.";
  if (asked.by === "" ? asked.and !== "" : asked.by === asked.and) return "Group by two different names, the first one first.";
  return null;
}

/** The path to ask for. `now` in milliseconds. */
export function pathOf(asked: Asked, now: number): string {
  const query = new URLSearchParams();
  const by = [asked.by, asked.and].filter((name) => name !== "");
  if (by.length > 0) query.set("by", by.join(","));
  if (asked.every !== "") query.set("every", asked.every);
  for (const name of DIMENSIONS) if (asked[name] !== "" && name !== "policy") query.set(name, asked[name]);
  const version = policyOf(asked.policy);
  if (version !== null) {
    query.set("policy", String(version.version));
    if (version.role !== null) query.set("role", version.role);
  }
  const seconds = SECONDS[asked.within] ?? SECONDS[DEFAULT_WITHIN] ?? 0;
  // Whole minutes: the same question is the same request for a while.
  const since = asked.since !== "" ? asked.since : asked.until !== "" ? "" : new Date(Math.floor(now / 60_000) * 60_000 - seconds * 1000).toISOString();
  if (since !== "") query.set("since", since);
  if (asked.until !== "") query.set("until", asked.until);
  return `/v1/statistics?${query.toString()}`;
}

export interface FigureKind {
  readonly title: string;
  readonly of: (measures: Measures) => number | null;
  readonly format: (value: number) => string;
  /** Where nothing happened it is 0; a mean is not known there. */
  readonly isSum: boolean;
}

export const tokensOf = (of: Measures) => of.prompt_tokens + of.completion_tokens;
const seconds = (milliseconds: number) => duration(milliseconds / 1000);

/** What the chart shows, by the address's parameter `figure`; the first one by default. */
export const FIGURES: Readonly<Record<string, FigureKind>> = {
  reward: { title: "Mean reward", of: (measures) => measures.mean_reward, format: measure, isSum: false },
  trajectories: { title: "Trajectories", of: (measures) => measures.trajectories, format: count, isSum: true },
  success: { title: "Success", of: (measures) => measures.success_share, format: share, isSum: false },
  calls: { title: "Calls", of: (measures) => measures.calls, format: count, isSum: true },
  errors: { title: "Failed calls", of: (measures) => measures.errors, format: count, isSum: true },
  tokens: { title: "Tokens", of: tokensOf, format: count, isSum: true },
  cost: { title: "Cost", of: (measures) => measures.cost_usd, format: dollars, isSum: true },
  latency: { title: "Latency, p95", of: (measures) => measures.latency_ms?.[1] ?? null, format: seconds, isSum: false },
};

export function figureOf(name: string): FigureKind {
  return FIGURES[name] ?? (FIGURES["reward"] as FigureKind);
}

/** Lines that one can tell from each other. */
export const LINES = 6;

/** The lines of a chart: the first groups, or all of them together where nothing is grouped. */
export function seriesOf(answer: Statistics, figure: FigureKind): Series[] {
  const groups = answer.by.length === 0 ? [answer.total] : answer.groups.slice(0, LINES);
  const times = answer.total.points.map((point) => Date.parse(point.at));
  return groups.map((group) => {
    const known = new Map(group.points.map((point) => [Date.parse(point.at), figure.of(point)]));
    const points = times
      .map((at) => [at, known.get(at) ?? (figure.isSum ? 0 : null)] as const)
      .filter((point): point is readonly [number, number] => point[1] !== null);
    return { name: answer.by.length === 0 ? "all" : nameOf(group), points };
  }).filter((line) => line.points.length > 0);
}

/** What a group is called, as a text that shows every character. */
export function nameOf(group: Group): string {
  const names = group.names.map((name) => visible(name ?? "not known").map((piece) => piece.text).join(""));
  return names.join(" · ");
}

/** The parameters of the list that shows a group's trajectories; null where it cannot be asked for them. */
export function listOf(group: Group, answer: Statistics, asked: Asked): Record<string, string> | null {
  const given = DIMENSIONS.filter((name) => asked[name] !== "").map((name) => [name, asked[name]] as const);
  const own = answer.by.map((name, at) => [name, group.names[at] ?? null] as const);
  if ([...given, ...own].some(([name, value]) => !LISTED.has(name) || value === null)) return null;
  const span = { since: answer.since, until: answer.until, state: "ended" };
  return { ...span, ...Object.fromEntries([...given, ...own]) } as Record<string, string>;
}

/** 0.612 ± 0.021. */
export function meanText(of: Measures): string {
  if (of.mean_reward === null) return "–";
  return of.reward_interval === null ? measure(of.mean_reward) : `${of.mean_reward.toFixed(3)} ± ${(of.reward_interval[1] - of.mean_reward).toFixed(3)}`;
}
