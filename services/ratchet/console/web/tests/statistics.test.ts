import assert from "node:assert/strict";
import { test } from "node:test";
import { askedOf, figureOf, isDetailed, listOf, meanText, nameOf, pathOf, seriesOf, wrongWith, type Group, type Statistics } from "../src/views/statistics/query.ts";

const NOW = Date.parse("2026-03-08T12:00:42.5Z");
const query = (params: Record<string, string>) => Object.fromEntries(new URLSearchParams(pathOf(askedOf(params), NOW).split("?")[1]));

test("nothing said is the last week of everything", () => {
  assert.deepEqual(query({}), { since: "2026-03-01T12:00:00.000Z" });
  assert.deepEqual(query({ within: "24h", by: "agent", and: "model", every: "hour" }), { by: "agent,model", every: "hour", since: "2026-03-07T12:00:00.000Z" });
});

test("filters go on by the names of the API, a policy as its version", () => {
  const { since, ...rest } = query({ domain: "a&b", policy: "support@7", figure: "cost" });
  assert.deepEqual(rest, { domain: "a&b", policy: "7", role: "support" });
  assert.equal(since, "2026-03-01T12:00:00.000Z");
  assert.ok(isDetailed(askedOf({ domain: "a" })) && !isDetailed(askedOf({ role: "a", by: "agent" })));
});

test("exact times take the place of a span", () => {
  assert.deepEqual(query({ since: "2026-01-01T00:00:00Z" }), { since: "2026-01-01T00:00:00Z" });
  assert.deepEqual(query({ until: "2026-01-01T00:00:00Z" }), { until: "2026-01-01T00:00:00Z" });
});

test("what cannot be asked is named", () => {
  assert.equal(wrongWith(askedOf({ by: "agent", and: "role" })), null);
  const wrong: Record<string, string>[] = [{ by: "agent", and: "agent" }, { and: "agent" }, { policy: "new" }, { since: "2026-02-01T00:00:00Z", until: "2026-01-01T00:00:00Z" }];
  for (const params of wrong) {
    assert.notEqual(wrongWith(askedOf(params)), null);
  }
});

const nothing = { trajectories: 0, outcomes: 0, successes: 0, success_share: null, rewarded: 0, mean_reward: null, reward_interval: null, calls: 0, errors: 0, cancelled: 0, prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0, reasoning_tokens: 0, cost_usd: 0, unpriced: 0, latency_ms: null, first_token_ms: null };
const at = (day: number, values: object) => ({ ...nothing, ...values, at: `2026-03-0${day}T00:00:00Z` });
const group = (names: (string | null)[], points: ReturnType<typeof at>[]): Group => ({ ...nothing, trajectories: 1, names, points });
const answer = (by: string[], groups: Group[]): Statistics => ({
  since: "2026-03-01T00:00:00Z", until: "2026-03-04T00:00:00Z", every: "day", by, evaluation: false, groups, other: null, others: 0,
  total: group([], [at(1, {}), at(2, {}), at(3, {})]),
});

test("where nothing happened a sum is 0, and a mean is not known", () => {
  const made = answer(["agent"], [group(["a"], [at(1, { calls: 4, mean_reward: 0.5 }), at(3, { calls: 2 })])]);
  const [first, second, third] = ["2026-03-01", "2026-03-02", "2026-03-03"].map((day) => Date.parse(`${day}T00:00:00Z`));
  assert.deepEqual(seriesOf(made, figureOf("calls"))[0]?.points, [[first, 4], [second, 0], [third, 2]]);
  assert.deepEqual(seriesOf(made, figureOf("reward"))[0]?.points, [[first, 0.5]]);
  assert.deepEqual(seriesOf(made, figureOf("latency")), []);
});

test("a chart has no more lines than one can tell apart", () => {
  const groups = Array.from({ length: 9 }, (_, n) => group([`a${n}`], [at(1, { calls: n })]));
  assert.equal(seriesOf(answer(["agent"], groups), figureOf("calls")).length, 6);
  assert.equal(seriesOf(answer([], []), figureOf("calls"))[0]?.name, "all");
});

test("a group leads to its trajectories where the list can be asked for them", () => {
  const span = { since: "2026-03-01T00:00:00Z", until: "2026-03-04T00:00:00Z", state: "ended" };
  assert.deepEqual(listOf(group(["a", "none"], []), answer(["agent", "outcome"], []), askedOf({ domain: "d" })), { ...span, domain: "d", agent: "a", outcome: "none" });
  assert.equal(listOf(group([null], []), answer(["agent"], []), askedOf({})), null);
  assert.equal(listOf(group(["k"], []), answer(["key"], []), askedOf({})), null);
});

test("names show every character, and what is not known", () => {
  assert.equal(nameOf(group(["a\u202eb", null], [])), "a‹U+202E›b · not known");
  assert.equal(meanText({ ...nothing, mean_reward: 0.5, reward_interval: [0.45, 0.55] }), "0.500 ± 0.050");
  assert.equal(meanText(nothing), "–");
});
