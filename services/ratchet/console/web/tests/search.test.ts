import assert from "node:assert/strict";
import { test } from "node:test";
import { fromField, toField } from "../src/format.ts";
import { isDetailed, isEmptySearch, pathOf, policyOf, searchOf, wrongWith } from "../src/views/trajectories/search.ts";

const NOW = Date.parse("2026-03-01T12:00:42.5Z");

test("a search without a filter asks for the newest", () => {
  assert.equal(pathOf(searchOf({}), null, NOW), "/v1/trajectories");
  assert.equal(pathOf(searchOf({ state: "all" }), "abc", NOW), "/v1/trajectories?after=abc");
  assert.ok(isEmptySearch(searchOf({ tab: "unrelated" })));
});

test("filters go on by the names of the API, with what they hold", () => {
  const path = pathOf(searchOf({ text: "a&b=c", role: "sup", reward_min: "0.2", outcome: "none" }), null, NOW);
  assert.deepEqual(Object.fromEntries(new URLSearchParams(path.split("?")[1])), { text: "a&b=c", role: "sup", reward_min: "0.2", outcome: "none" });
});

test("a span of time ends now and is the same request within a minute", () => {
  const path = pathOf(searchOf({ within: "1h" }), null, NOW);
  assert.equal(path, "/v1/trajectories?since=2026-03-01T11%3A00%3A00.000Z");
  assert.equal(pathOf(searchOf({ within: "1h" }), null, NOW + 10_000), path);
});

test("a policy is a version, with its role where one is named", () => {
  assert.deepEqual(["7", "v7", "support@7", "support@7-9be2d410", "newest", "a b@1"].map(policyOf), [
    { role: null, version: 7 }, { role: null, version: 7 }, { role: "support", version: 7 }, { role: "support", version: 7 }, null, null,
  ]);
  assert.equal(pathOf(searchOf({ policy: "support@7", role: "triage" }), null, NOW), "/v1/trajectories?role=support&policy=7");
});

test("what cannot be asked is said before it is asked", () => {
  assert.equal(wrongWith(searchOf({ reward_min: "0.1", reward_max: "0.9", policy: "7" })), null);
  assert.match(wrongWith(searchOf({ reward_min: "high" })) ?? "", /number/);
  assert.match(wrongWith(searchOf({ reward_min: "0.9", reward_max: "0.1" })) ?? "", /above/);
  assert.match(wrongWith(searchOf({ policy: "newest" })) ?? "", /version/);
  assert.match(wrongWith(searchOf({ since: "2026-03-02T00:00:00Z", until: "2026-03-01T00:00:00Z" })) ?? "", /begins/);
});

test("the long form is open where the short one hides a filter", () => {
  assert.equal(isDetailed(searchOf({ role: "support" })), false);
  assert.equal(isDetailed(searchOf({ reason: "greedy" })), true);
});

test("a field of date and time holds the reader's own time", () => {
  assert.equal(fromField(toField("2026-03-01T12:00:00.000Z")), "2026-03-01T12:00:00.000Z");
  assert.deepEqual([toField("never"), fromField("")], ["", ""]);
});
