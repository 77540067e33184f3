// The search of trajectories: its form, its place in the address, and the request that it stands for.
// Nothing here touches the page.

/** What one may search by; all texts, as the address has them. */
export interface Search {
  readonly text: string;
  readonly role: string;
  readonly state: string;
  readonly arm: string;
  readonly outcome: string;
  /** `1h`, `24h`, `7d`, `30d`; empty for all times, or for `since` and `until`. */
  readonly within: string;
  /** RFC 3339. */
  readonly since: string;
  readonly until: string;
  /** A version: `7`, `support@7`, `support@7-9be2d410`. */
  readonly policy: string;
  readonly reward_min: string;
  readonly reward_max: string;
  readonly reason: string;
  readonly agent: string;
  readonly domain: string;
  readonly model: string;
  readonly profile: string;
  readonly source: string;
}

export const NAMES = ["text", "role", "state", "arm", "outcome", "within", "since", "until", "policy", "reward_min", "reward_max", "reason", "agent", "domain", "model", "profile", "source"] as const satisfies readonly (keyof Search)[];
const RARE: readonly (keyof Search)[] = ["since", "until", "policy", "reward_min", "reward_max", "reason", "agent", "domain", "model", "profile", "source"];

export const WITHIN: readonly (readonly [string, string])[] = [
  ["", "any time"], ["1h", "the last hour"], ["24h", "the last 24 hours"], ["7d", "the last 7 days"], ["30d", "the last 30 days"],
];
export const SECONDS: Readonly<Record<string, number>> = { "1h": 3600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400, "90d": 90 * 86_400 };

/** Why a call may teach policy gradients nothing, as the gateway and the collector name it. */
export const REASONS: readonly string[] = [
  "greedy", "top_p", "top_k", "min_p", "penalty", "constrained", "multimodal", "unsearchable_prompt", "redacted", "cancelled",
  "no_token_ids", "no_logprobs", "count_mismatch", "no_usage", "impossible_logprobs", "unreadable", "raw_logprobs", "unknown_logprobs",
  "error", "cached", "mixed", "too_large", "lost", "unsearched", "invalid", "parent_missing", "prefix_mismatch", "unknown",
];

export function searchOf(params: Readonly<Record<string, string>>): Search {
  return Object.fromEntries(NAMES.map((name) => [name, params[name] ?? ""])) as unknown as Search;
}

/** Whether something is searched for that the short form does not show. */
export function isDetailed(search: Search): boolean {
  return RARE.some((name) => search[name] !== "");
}

export function isEmptySearch(search: Search): boolean {
  return NAMES.every((name) => search[name] === "");
}

/** What is wrong with the form, in words; null when it can be asked. */
export function wrongWith(search: Search): string | null {
  const [low, high] = [search.reward_min, search.reward_max].map((value) => (value === "" ? null : Number(value)));
  if ([low, high].some((value) => value !== null && !Number.isFinite(value))) return "A reward is a number, such as 0.5.";
  if (low != null && high != null && low > high) return "The least reward is above the largest one.";
  if (search.policy !== "" && policyOf(search.policy) === null) return "A policy is its version: 7, or support@7.";
  if (search.since !== "" && search.until !== "" && Date.parse(search.since) > Date.parse(search.until)) return "The time begins after its end.";
  return null;
}

/** The path to ask for. `now` in milliseconds. */
export function pathOf(search: Search, after: string | null, now: number): string {
  const { within, policy, ...plain } = search;
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(plain)) if (value !== "" && !(name === "state" && value === "all")) asked.set(name, value);
  const version = policyOf(policy);
  if (version !== null) {
    asked.set("policy", String(version.version));
    if (version.role !== null) asked.set("role", version.role);
  }
  const seconds = SECONDS[within];
  // Whole minutes: the same search is the same request for a while.
  if (seconds !== undefined) asked.set("since", new Date(Math.floor(now / 60_000) * 60_000 - seconds * 1000).toISOString());
  if (after !== null) asked.set("after", after);
  const query = asked.toString();
  return `/v1/trajectories${query === "" ? "" : `?${query}`}`;
}

export function policyOf(text: string): { role: string | null; version: number } | null {
  const match = /^(?:([a-z0-9_-]{1,64})@)?v?(\d{1,9})(?:-[0-9a-f]{4,64})?$/.exec(text.trim());
  return match === null ? null : { role: match[1] ?? null, version: Number(match[2]) };
}
