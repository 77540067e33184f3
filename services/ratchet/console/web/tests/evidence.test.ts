import assert from "node:assert/strict";
import { test } from "node:test";
import type { DecisionPoint, Rollout } from "../src/api/types.ts";
import { actsFor, armRows, changes, costWords, differenceRows, evidenceSeries, limits, sampleRatio, sharesOf, standing, suiteRows, track, type Sample } from "../src/views/rollouts/evidence.ts";

const ARM = { started: 0, trajectories: 0 };

function rollout(members: Partial<Rollout> = {}): Rollout {
  return {
    rollout_id: "r1", state: "running", stage: 1, weight: 0.25, gates: [], differences: {}, e_values: {}, thresholds: {}, approval: "automated",
    parked: false, waiting_for: [], candidate: { name: "support@7", version: 7, digest: "d" }, forecast: { trajectories_per_day: 1, expected_days: 3, expected_days_by_stage: [1, 1, 1] },
    arms: { stable: ARM, canary: ARM, mixed: 0 }, ...members,
  } as unknown as Rollout;
}

function decision(sequence: number, members: Partial<DecisionPoint> = {}): DecisionPoint {
  return { sequence, at: `2026-03-01T0${sequence}:00:00Z`, verdict: "hold", actor: "a", reason: "", stage: 0, weight: 0.1, e_values: {}, differences: {}, counts: {}, ...members };
}

const states = (one: Rollout) => track(one, []).map((step) => step.state);

test("the track says what is behind, where it is and what is ahead", () => {
  assert.deepEqual(states(rollout()), ["done", "done", "now", "ahead", "ahead", "ahead"]);
  assert.deepEqual(states(rollout({ state: "gating", stage: 0 })), ["now", "ahead", "ahead", "ahead", "ahead", "ahead"]);
  assert.deepEqual(states(rollout({ state: "soaking", stage: 3 })), ["done", "done", "done", "done", "now", "ahead"]);
  assert.deepEqual(states(rollout({ state: "held", stage: 3 })), ["done", "done", "done", "done", "now", "ahead"]);
  assert.deepEqual(states(rollout({ state: "promoted", stage: 2 })), ["done", "done", "done", "done", "done", "done"]);
  assert.deepEqual(states(rollout({ state: "rolled_back" })), ["done", "done", "failed", "ahead", "ahead", "failed"]);
  assert.deepEqual(states(rollout({ state: "suspended" })), ["done", "done", "stopped", "ahead", "ahead", "ahead"]);
  assert.deepEqual(states(rollout({ state: "suspended", stage: 3 })), ["done", "done", "done", "done", "stopped", "ahead"]);
  assert.deepEqual(states(rollout({ state: "withdrawn" })), ["done", "done", "failed", "ahead", "ahead", "failed"]);
  assert.deepEqual(states(rollout({ state: "refused", stage: 0 })), ["failed", "ahead", "ahead", "ahead", "ahead", "failed"]);
});

test("a stage shows its share of traffic once it is known", () => {
  const steps = track(rollout({ forecast: null }), [decision(0), decision(1, { stage: 1, weight: 0.25 })]);
  assert.deepEqual(steps.map((step) => step.detail).slice(1, 3), ["10 % canary", "25 % canary"]);
});

test("evidence is that of the decisions and of the moments between them; the combined value comes first", () => {
  const decisions = [decision(0), decision(2, { e_values: { rollback: { failure: 2, combined: 1.5 } } })];
  const between: Sample[] = [{ at: "2026-03-01T01:00:00Z", e_values: { rollback: { failure: 1, combined: 1 } } }, { at: "2026-03-01T03:00:00Z", e_values: { rollback: { failure: 0, combined: 3 } } }];
  const hour = (of: number) => Date.parse(`2026-03-01T0${of}:00:00Z`);
  assert.deepEqual(evidenceSeries("rollback", decisions, between), [
    { name: "combined", points: [[hour(1), 1], [hour(2), 1.5], [hour(3), 3]] },
    { name: "failure", points: [[hour(1), 1], [hour(2), 2], [hour(3), 1e-6]] },
  ]);
});

test("limits at one height are one line", () => {
  const thresholds = { rollback: 40, complaints: 200, first_call: 100, safety: 200, sample_ratio: 200 };
  assert.deepEqual(limits("rollback", thresholds), [{ name: "rolls back at 40", value: 40 }]);
  assert.deepEqual(limits("tests", thresholds).map((limit) => limit.name), ["complaints, safety, sample ratio holds at 200", "first call at 100"]);
  assert.deepEqual(limits("promotion", thresholds), []);
  assert.deepEqual(limits("suspension", thresholds).map((limit) => limit.name), ["combined at 40", "complaints, safety at 200", "first call at 100"]);
});

test("a difference is shown by share of traffic too", () => {
  const part = (weight: number) => ({ weight, difference: weight, low: -1, high: 1, stable: 90, canary: 10 });
  const whole = { difference: 0.02, margin: 0.05, by_share: [part(0.1), part(0.25)] };
  const rows = differenceRows({ failure: whole, reward: { ...whole, by_share: [part(0.25)] } });
  assert.deepEqual(sharesOf({ failure: whole }), [0.1, 0.25]);
  assert.deepEqual(rows.map((row) => [row.metric, row.shares]), [["failure", [part(0.1), part(0.25)]], ["reward", [null, part(0.25)]]]);
});

test("a difference is clear once its interval is on one side of the margin", () => {
  assert.equal(standing({ difference: 0.01, margin: 0.05, low: -0.02, high: 0.04 }), "within");
  assert.equal(standing({ difference: 0.01, margin: 0.05, low: -0.06, high: 0.08 }), "not clear yet");
  assert.equal(standing({ difference: 0.09, margin: 0.05, low: 0.06, high: 0.12 }), "beyond");
  assert.equal(standing({ difference: 0.09, margin: 0.05 }), "beyond");
});

test("both arms show whatever figures the deployer has, costs in dollars", () => {
  const arm = { trajectories: 1200, started: 1210, failure_rate: "no trajectories", error_rate: 0.02, cost_usd: 0.0031, new_figure: 0.5 } as unknown as Rollout["arms"]["stable"];
  assert.deepEqual(armRows(arm, { ...arm, started: 9 }).map((row) => [row.name, row.stable, row.canary]), [
    ["Started", "1,210", "9"], ["Settled", "1,200", "1,200"], ["Failure rate", "no trajectories", "no trajectories"],
    ["Mean cost", "$0.0031", "$0.0031"], ["Calls that failed", "2 %", "2 %"], ["new figure", "0.5", "0.5"],
  ]);
});

test("cost says up to what it is compared, or why not", () => {
  assert.equal(costWords(rollout()), null);
  assert.equal(costWords(rollout({ cost: { cap_usd: 0.04, basis: "b" } } as Partial<Rollout>)), "compared up to $0.04 a trajectory: b");
  assert.equal(costWords(rollout({ cost: { basis: "no prices" } } as Partial<Rollout>)), "not compared: no prices");
});

test("the sample ratio is the canary's share of what started", () => {
  const arms = { stable: { ...ARM, started: 300 }, canary: { ...ARM, started: 100 }, mixed: 0 } as unknown as Rollout["arms"];
  assert.equal(sampleRatio(rollout({ arms })).seen, 0.25);
  assert.equal(sampleRatio(rollout()).seen, null);
});

test("a state has the acts that make sense", () => {
  assert.deepEqual(actsFor(null), ["start", "revert"]);
  assert.deepEqual(actsFor(rollout({ state: "awaiting_approval" })), ["approve", "rollback", "revert"]);
  assert.deepEqual(actsFor(rollout()), ["pause", "promote", "rollback", "revert"]);
  assert.deepEqual(actsFor(rollout({ state: "suspended" })), ["resume", "promote", "rollback", "revert"]);
  assert.deepEqual(actsFor(rollout({ state: "withdrawn" })), ["start", "revert"]);
  assert.deepEqual(actsFor(rollout({ state: "promoted", parked: true })), ["resume", "start", "revert"]);
});

test("a dry run is shown as what it would change", () => {
  const after = rollout({ state: "paused" });
  assert.deepEqual(changes(rollout(), after), ["State: running → paused"]);
  assert.deepEqual(changes(null, rollout({ state: "gating", weight: 0 }))[0], "A new rollout of support@7");
  assert.deepEqual(changes(rollout(), rollout({ state: "rolled_back", weight: 0, parked: true })), [
    "State: running → rolled back", "Canary's share of traffic: 25 % → 0 %", "No candidate starts until the queue is resumed",
  ]);
});

test("suites are shown one by one, with the interval of the difference", () => {
  const compared = { stable_score: 0.98, candidate_score: 0.755, difference: -0.225, lower_bound: -0.27, upper_bound: -0.16, verdict: "worse" };
  assert.deepEqual(suiteRows({ alpha: 0.05, suites: { over_refusal: compared, refusal: { candidate_score: 1 } } }), [
    { suite: "over refusal", stable: "98 %", candidate: "75.5 %", difference: "−22.5 % (−27 % to −16 %)", verdict: "worse" },
    { suite: "refusal", stable: "–", candidate: "100 %", difference: "–", verdict: "–" },
  ]);
  assert.deepEqual([suiteRows({ tasks: 3 }), suiteRows({ suites: null })], [[], []]);
});
