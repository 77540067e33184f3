import assert from "node:assert/strict";
import { test } from "node:test";
import type { Model } from "../src/api/types.ts";
import { answerText, beside, byRole, card, continued, isTrained, kindOf, gateRows, pair, type Lineage } from "../src/views/policies/models.ts";

const model = (role: string, version: number) => ({ role, version, name: `${role}@${version}`, state: "stable", kind: "adapter", base_model: "b", created_at: "c", uri: "u", digest: "d" }) as Model;

test("roles come in order, their versions newest first", () => {
  const roles = byRole([model("support", 1), model("mail", 2), model("support", 10), model("support", 9)]);
  assert.deepEqual(roles.map(([role, versions]) => [role, versions.map((one) => one.version)]), [["mail", [2]], ["support", [10, 9, 1]]]);
});

test("a comparison begins with a candidate and what serves its role", () => {
  const [five, six, seven] = [model("support", 5), { ...model("support", 6), stage: "production" as const }, model("support", 7)];
  const models = [model("mail", 1), five, six, seven];
  assert.deepEqual(pair(models, "support", 5), { left: "support@5", right: "support@6" });
  assert.deepEqual(pair(models, undefined, Number.NaN), { left: "support@7", right: "support@6" });
  assert.deepEqual(pair([five], "support", 5), { left: "support@5", right: "" });
  assert.deepEqual(pair([], undefined, 1), { left: "", right: "" });
});

test("gates are read in whatever form the registry kept them", () => {
  assert.deepEqual(gateRows({ held_out: { outcome: "passed", reason: "r", evidence: { a: 1 } }, older: { lower_bound: 3 }, odd: 7 }), [
    { gate: "held_out", outcome: "passed", reason: "r", evidence: { a: 1 } },
    { gate: "older", outcome: "", reason: "", evidence: {} },
    { gate: "odd", outcome: "", reason: "7", evidence: {} },
  ]);
  assert.deepEqual(gateRows(null), []);
});

test("a card says so where its history is not kept", () => {
  const lineage = { policy: model("support", 2), trajectories: { total: 0, offset: 0, items: [] }, preferences: { total: 0, offset: 0, items: [] }, rewards: [], feedback: [], announcements: [], counted: 0, missing: ["the job is pruned"] };
  const text = card(lineage as unknown as Lineage);
  assert.match(text, /^# support@2\n/);
  assert.match(text, /It continues the base model\./);
  assert.match(text, /## Not kept any more\n\n- the job is pruned\n$/);
});

test("a card has the scores of safety suites", () => {
  const suites = { jailbreak: { stable_score: 1, candidate_score: 0.5, difference: -0.5, lower_bound: -0.6, upper_bound: -0.4, verdict: "worse" } };
  const policy = { ...model("support", 2), gate: { safety_suite: { outcome: "failed", reason: "worse on jailbreak", evidence: { suites } } } };
  const text = card({ policy, announcements: [], missing: [] } as unknown as Lineage);
  assert.match(text, /- safety suite: failed\. worse on jailbreak\n {2}- jailbreak: stable 100 %, candidate 50 %, difference −50 % \(−60 % to −40 %\): worse\n/);
});

test("a bundle is named by who answers, and needs no training", () => {
  const bundle = { ...model("support", 3), kind: "bundle", base_model: "openai/small" };
  assert.deepEqual([kindOf(bundle), kindOf({ ...bundle, base_model: "" }), kindOf({ ...bundle, version: 0 }), kindOf(model("support", 2))],
    ["bundle, answered by openai/small", "bundle, names no model", "bundle, calls as agents send them", "adapter on b"]);
  assert.deepEqual([continued(bundle), continued({ ...bundle, parent: 2 }), continued(model("support", 2))], [null, "version 2", "the base model"]);
  assert.deepEqual([isTrained(bundle), isTrained({ ...bundle, training_job_id: "j" }), isTrained(model("support", 2))], [false, true, true]);
  const lineage = { policy: bundle, announcements: [], missing: ["support@3 names no training job"] };
  assert.doesNotMatch(card(lineage as unknown as Lineage), /Training|not kept/i);
});

test("a version is compared with stable, else with the one before", () => {
  assert.equal(beside(3, [0, 1, 2, 3], 1), 1);
  assert.equal(beside(3, [0, 1, 3, 4], 3), 1);
  assert.equal(beside(0, [0, 2], 0), 2);
  assert.equal(beside(0, [0], 0), null);
});

test("an answer is its text and its tool calls", () => {
  const completion = { choices: [{ message: { content: "Let me look.", tool_calls: [{ function: { name: "find", arguments: '{"id":1}' } }] } }] };
  assert.equal(answerText(completion), 'Let me look.\n→ find({"id":1})');
  assert.equal(answerText({ choices: [{ message: { content: null } }] }), "");
  assert.equal(answerText({}), "");
});
