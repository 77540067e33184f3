// Patterns and plans: their costs, effects and trail in words.

import assert from "node:assert/strict";
import { test } from "node:test";
import { costOf, effectText, promiseText, toneOf, trailOf, triggersText, withPlans, type LearningEvent, type Pattern, type Plan } from "../src/views/changes/learning.ts";

const PATTERN = { pattern_id: "a", role: "support", reward_cost: 3.25, cost_usd: 0.5, triggers: [{ attribute: "task_type", value: "refund" }, { attribute: "term", value: "late" }] } as unknown as Pattern;
const PLAN = { plan_id: "p", pattern_id: "a", history: [{ state: "draft", at: "2026-01-02T00:00:00Z", by: "analyst" }] } as unknown as Plan;

function event(changes: object): LearningEvent {
  return { at: "2026-01-01T00:00:00Z", phase: "pattern_identification", what: "pattern_opened", summary: "it opened", role: "support", key: "1", ...changes } as LearningEvent;
}

test("a pattern costs reward and money, or nothing that is known", () => {
  assert.deepEqual([costOf(PATTERN), costOf({ ...PATTERN, reward_cost: 0 }), costOf({ pattern_id: "a" } as unknown as Pattern)],
    ["3.25 of reward, $0.5", "$0.5", "–"]);
});

test("an effect has its sign and its interval, triggers are all named", () => {
  assert.equal(effectText("cost_usd", 0.2, { low: 0.1, high: 0.3 }), "cost usd +0.2 (0.1 to 0.3)");
  assert.deepEqual([triggersText(PATTERN), triggersText({ ...PATTERN, triggers: [] })], ["task type refund and term late", "all of support"]);
});

test("a plan looks good only where the arms show that it helped", () => {
  const tone = (measure: string, low: number, high: number, state = "validated") => toneOf({ state, expected: { measure }, effect: { low, high } } as unknown as Plan);
  assert.deepEqual([tone("failure", -0.2, -0.1), tone("reward", 0.1, 0.2), tone("failure", -0.1, 0.1)], ["good", "good", "info"]);
  assert.deepEqual([tone("failure", 0.1, 0.2), tone("reward", -0.2, -0.1), tone("failure", -0.2, -0.1, "rolled_back")], ["warn", "warn", "warn"]);
  assert.equal(toneOf({ state: "validated", expected: { measure: "failure" } } as unknown as Plan), "info");
});

test("a promise is an upper bound, or none", () => {
  const promise = (value: number) => promiseText({ measure: "failure", value, low: value, high: value } as unknown as Plan["expected"]);
  assert.deepEqual([promise(-0.2), promise(0)], ["at most failure -0.2", "nothing that arms compare"]);
});

test("the newest plan stands beside its pattern", () => {
  assert.deepEqual(withPlans([PATTERN, { ...PATTERN, pattern_id: "b" }], [PLAN, { ...PLAN, plan_id: "older" }]).map(({ plan }) => plan?.plan_id), ["p", undefined]);
});

test("a trail has the events of a pattern and its plans, in order", () => {
  const events = [event({ plan_id: "p", at: "2026-01-03T00:00:00Z", summary: "drafted" }), event({ pattern_id: "a" }), event({ pattern_id: "b" }), event({ plan_id: "other", pattern_id: "a" })];
  assert.deepEqual(trailOf(PATTERN, [PLAN], events).map(({ text }) => text), ["it opened", "drafted"]);
});

test("a plan whose events are forgotten has its own history", () => {
  assert.deepEqual(trailOf(PATTERN, [PLAN], []).map(({ name, text }) => [name, text]), [["plan: draft", "analyst"]]);
});
