import assert from "node:assert/strict";
import { test } from "node:test";
import { feedbackOf, given, giver, ownOpinion, type Feedback } from "../src/parts/feedback.ts";
import { componentsOf, hasEvidence, revisionText, type Reward } from "../src/views/trajectories/rewards.ts";
import { alphaInWords } from "../src/views/annotation/agreement.ts";

const WHO = { key_id: "k1", name: "ada", view: true, annotate: true, train: false, operate: false, infer: false, scopes: [] };

// As the API writes them: members that have their default are absent.
function feedback(members: object): Feedback {
  return { feedback_id: "f", trajectory_id: "t", kind: "thumbs", at: "2026-03-01T12:00:00Z", rater: "ada", key_id: "k1", ...members } as Feedback;
}

function reward(components: object, members: object = {}): Reward {
  return { reward_id: "r", trajectory_id: "t", timestamp: "2026-03-01T12:00:00Z", total_reward: 0.5, reward_components: components, ...members } as Reward;
}

test("feedback names the person, the page and the role", () => {
  assert.deepEqual(feedbackOf({ trajectory_id: "t", role: "support" }, "rating", 4, WHO),
    { trajectory_id: "t", role: "support", kind: "rating", value: 4, source: "console", rater: "ada" });
});

test("a person's newest opinion counts, and no other person's", () => {
  const all = [
    feedback({ value: true }), feedback({ value: false, at: "2026-03-01T12:05:00Z" }), feedback({ value: true, at: "2026-03-01T12:09:00Z", key_id: "k2" }),
    feedback({ kind: "rating", value: 3 }), feedback({ kind: "rating", value: 5, rater: "on behalf of ada" }),
  ];
  assert.deepEqual(ownOpinion(all, WHO), { thumbs: false, rating: 3 });
  assert.deepEqual(ownOpinion([], WHO), { thumbs: null, rating: null });
  assert.deepEqual(ownOpinion([feedback({ value: true, key_id: undefined })], { ...WHO, key_id: null }), { thumbs: true, rating: null });
});

test("opinions read as words", () => {
  assert.deepEqual([given("thumbs", true), given("thumbs", false), given("rating", 4), given("correction", undefined), given("correction", "x")],
    ["thumbs up", "thumbs down", "4 of 5 stars", "said that the answer is wrong", "a correction"]);
  assert.deepEqual([given("comment", "x"), given("error_analysis", "x"), given("outcome_evaluation", 0.5)],
    ["a comment", "an error analysis", "outcome evaluation: 0.5"]);
  assert.deepEqual([giver(feedback({ source: "console" })), giver(feedback({ rater: undefined, user_ref: "h" })), giver(feedback({ rater: undefined, kind: "update" }))],
    ["ada, console", "an end user", "Ratchet"]);
});

test("components that weigh most come first, those that do not apply last", () => {
  const lines = componentsOf(reward({
    style: { score: 0.2, weight: 0.9, source: "judge", applicable: false },
    speed: { score: 0.4, weight: 1, source: "environment" },
    task_completion: { score: 0.7, normalized: 0.8, weight: 3, source: "outcome", reasoning: "solved" },
  }));
  assert.deepEqual(lines.map(({ name, score, weight, why }) => [name, score, weight, why]), [
    ["task completion", 0.7, "weighs 75 %", "solved"], ["speed", 0.4, "weighs 25 %", null], ["style", null, "does not apply", null],
  ]);
});

test("a reward without a component that applies is no evidence", () => {
  assert.equal(hasEvidence(reward({ a: { score: 0.5, weight: 1, source: "x", applicable: false } })), false);
  assert.equal(hasEvidence(reward({ a: { score: 0.5, weight: 1, source: "x" } })), true);
});

test("a revision says what it changed", () => {
  const first = reward({ a: { score: 0.5, weight: 1, source: "x" }, b: { score: 0, weight: 1, source: "x", applicable: false } });
  const second = reward({ a: { score: 0.25, weight: 1, source: "x" }, b: { score: 1, weight: 1, source: "x" } }, { total_reward: 0.625, revision: 1 });
  assert.equal(revisionText(second, first), "a went from 0.5 to 0.25; b is known now: 1; the total changed by +0.125");
  assert.equal(revisionText({ ...first, reward_function: { name: "standard", version: "2" } }, first), "computed by standard 2, before by an unnamed function; the total stayed");
  assert.equal(revisionText(first, undefined), null);
});

test("an agreement has a word", () => {
  assert.deepEqual([null, 0.9, 0.7, 0.3, -0.1].map((alpha) => alphaInWords(alpha).text),
    ["nothing to compare yet", "reliable", "tentative", "weak", "no better than chance"]);
});
