import assert from "node:assert/strict";
import { test } from "node:test";
import { cancelStages, doneShare, heartbeatWarning, inOrder, progressText, resultText, tookSeconds, type Job } from "../src/parts/jobs.ts";
import { differences, inReadingOrder, isGood, overEachOther, rangeText, type Curve } from "../src/views/training/curves.ts";
import { draftAgain, EMPTY, kept, requestOf } from "../src/views/training/request.ts";

const NOW = Date.parse("2026-03-01T12:00:00Z");

function ago(seconds: number): string {
  return new Date(NOW - seconds * 1000).toISOString();
}

function job(members: object): Job {
  const config = { algorithm: "sft", base_model: "stable", dataset: { source: "clickhouse", sample_size: 5000 }, hyperparameters: {} };
  return { training_job_id: "j", role: "support", algorithm: "sft", state: "running", created_at: ago(60), cancel_requested: false, request: { training_config: config }, ...members } as Job;
}

function curve(name: string, values: number[], good: Curve["good"] = null): Curve {
  return { name, meaning: null, good, points: values.map((value, step) => [step, value]) };
}

test("jobs that run come first, then those that wait, each newest first", () => {
  const jobs = [["a", "completed", 1], ["b", "queued", 9], ["c", "running", 50], ["d", "dispatched", 8], ["e", "failed", 0]]
    .map(([id, state, at]) => job({ training_job_id: id, state, created_at: ago(at as number) }));
  assert.deepEqual(inOrder(jobs).map((one) => one.training_job_id), ["d", "c", "b", "e", "a"]);
});

test("progress is what is known of it", () => {
  assert.equal(doneShare(job({})), null);
  assert.equal(doneShare(job({ progress: { current_step: 3, total_steps: 12 } })), 0.25);
  assert.equal(doneShare(job({ progress: { percent_complete: 61 } })), 0.61);
  assert.equal(progressText(job({ progress: { current_step: 3, total_steps: 12, eta_seconds: 90 } })), "train step 3 of 12, 1 min 30 s left");
  assert.equal(tookSeconds(job({ started_at: ago(30), finished_at: ago(10) }), NOW), 20);
  assert.equal(tookSeconds(job({}), NOW), null);
});

test("a job's line says what stopped it, or its last figures", () => {
  assert.equal(resultText(job({ state: "failed", error: { message: "too large" } })), "UNKNOWN: too large");
  assert.equal(resultText(job({ state: "completed", error: { code: "OOM", message: "of an earlier attempt" }, metrics: { loss: 0.25 } })), "loss 0.25");
  assert.equal(resultText(job({ cancel_requested: true, cancelled_by: "ada" })), "cancel asked for by ada");
});

test("a worker that is silent is warned about, and only while it has the job", () => {
  assert.equal(heartbeatWarning(job({ heartbeat_at: ago(4) }), NOW), null);
  assert.match(heartbeatWarning(job({ heartbeat_at: ago(12), worker: "w" }), NOW) ?? "", /^w was not heard for 12 s\..*after 30 s/);
  assert.match(heartbeatWarning(job({ heartbeat_at: ago(40) }), NOW) ?? "", /gives its attempt away/);
  assert.equal(heartbeatWarning(job({ state: "completed", heartbeat_at: ago(400) }), NOW), null);
});

test("a cancel has its stages: asked for, acknowledged by the worker, ended", () => {
  const stages = (members: object) => cancelStages(job({ cancel_requested: true, cancelled_by: "ada", worker: "w", ...members }), NOW).map((one) => `${one.state}: ${one.name}, ${one.text}`);
  assert.deepEqual(cancelStages(job({}), NOW), []);
  const end = "Cancelled, when it has stopped, or after 30 s of silence";
  const first = "done: Asked for, by ada: after its train step, with a checkpoint";
  const read = "done: Acknowledged, by w: it stops after its train step, and keeps a checkpoint";
  assert.deepEqual(stages({ heartbeat_at: ago(3) }), [first, "now: Waits for the worker, heard 3 s ago", `to come: ${end}`]);
  assert.deepEqual(stages({ stopping: "after_step" }), [first, read, `now: ${end}`]);
  assert.deepEqual(stages({ stopping: "after_step", cancel_now: true, heartbeat_at: ago(0) }), ["done: Asked for, by ada: an end at once", "now: Waits for the worker, heard just now", `to come: ${end}`]);
  assert.equal(stages({ stopping: "now", cancel_now: true })[1], "done: Acknowledged, by w: it ends the training at once");
  assert.deepEqual(stages({ state: "cancelled", stopping: "after_step", artifacts: { checkpoint: "s3://c" } }).slice(1), [read, "done: Cancelled, it makes no policy; its checkpoint is kept"]);
  assert.equal(stages({ state: "cancelled" })[1], "done: Not acknowledged, w did not say that it stops");
  assert.equal(stages({ state: "cancelled", worker: null })[1], "done: Acknowledged, no worker had it");
  assert.equal(stages({ state: "completed" })[1], "done: Too late, it had completed before the worker stopped");
});

test("a curve is in its range by its last value", () => {
  const good = { low: 0.2, high: null, meaning: "" };
  assert.deepEqual([isGood(curve("a", [0.1, 0.3], good)), isGood(curve("a", [0.1], good)), isGood(curve("a", [], good)), isGood(curve("a", [1]))], [true, false, null, null]);
  assert.equal(isGood(curve("a", [Number.NaN], good)), false);
  assert.deepEqual([good, { ...good, high: 1 }, { ...good, low: null, high: 1 }].map(rangeText), ["at least 0.2", "0.2 to 1", "at most 1"]);
  assert.equal(rangeText({ ...good, low: null }), null);
});

test("what one looks at first comes first", () => {
  assert.deepEqual(inReadingOrder(["zeta", "loss", "alpha", "reward_mean"].map((name) => curve(name, [1]))).map((one) => one.name), ["reward_mean", "loss", "alpha", "zeta"]);
});

test("two jobs' curves lie over each other by name, shared ones first", () => {
  const both = overEachOther([curve("loss", [3]), curve("own", [1])], [curve("loss", [2]), curve("other", [5])]);
  assert.deepEqual(both.map((one) => [one.name, one.one.length, one.other.length]), [["loss", 1, 1], ["other", 0, 1], ["own", 1, 0]]);
});

test("requests differ by path", () => {
  assert.deepEqual(differences({ a: 1, deep: { same: "x", list: [1, 2] } }, { a: 1, deep: { same: "x", list: [1] }, more: true }), [
    { name: "deep.list", one: "[1,2]", other: "[1]" }, { name: "more", one: "", other: "true" },
  ]);
});

test("the form makes a request of what is filled in, and nothing else", () => {
  const made = requestOf({ ...EMPTY, role: "support", learning_rate: "1e-4", epochs: "2", min_reward: "0.5", more: '{"kl_beta": 0.01}' }, null, "key");
  assert.deepEqual(made, { body: {
    role: "support", algorithm: "auto", base_model: "stable", priority: "normal", requester: "console", idempotency_key: "key",
    dataset: { filter: { min_reward: 0.5 } }, hyperparameters: { kl_beta: 0.01, learning_rate: 0.0001, epochs: 2 },
  } });
});

test("a form that cannot be sent says why, by field", () => {
  const made = requestOf({ ...EMPTY, epochs: "1.5", beta: "little", more: "[1]" }, null, "key");
  assert.deepEqual("wrong" in made ? Object.keys(made.wrong).sort() : null, ["beta", "epochs", "more", "role"]);
});

test("what is not set is left out of a request, at every depth; false and 0 stay", () => {
  assert.deepEqual(kept({ a: null, b: { c: undefined }, d: [], e: 0, f: false, g: { h: "" } }), { d: [], e: 0, f: false, g: { h: "" } });
});

test("training again takes the same data and the same settings", () => {
  const config = { algorithm: "dpo", base_model: "s3://b/p.json", dataset: { source: "clickhouse", sample_size: 100 }, hyperparameters: { beta: 0.2, kl_beta: 0.5, epochs: null }, compute: { mixed_precision: "fp32" } };
  const { draft, same } = draftAgain(job({ algorithm: "dpo", priority: "high", snapshot: { uri: "s3://b/s.json", digest: "d" }, request: { training_config: config } }));
  const made = requestOf(draft, same, "key");
  assert.deepEqual(made, { body: {
    role: "support", algorithm: "dpo", base_model: "s3://b/p.json", requester: "console", notes: "again: j", idempotency_key: "key",
    dataset: { sample_size: 100, snapshot: { uri: "s3://b/s.json", digest: "d" } }, hyperparameters: { beta: 0.2, kl_beta: 0.5 }, compute: { mixed_precision: "fp32" }, priority: "high",
  } });
});
