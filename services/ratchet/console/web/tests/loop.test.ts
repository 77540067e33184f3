import assert from "node:assert/strict";
import { test } from "node:test";
import type { Attention, Loop } from "../src/api/types.ts";
import { actFor } from "../src/views/loop/attention.ts";
import { lately, stations } from "../src/views/loop/picture.ts";

const EMPTY: Loop = { at: "2026-03-01T00:00:00Z", minutes: [], open_trajectories: null, streams: [], ledger: [], services: [], roles: [], jobs: {}, attention: [], unread: {} };
const minute = (place: number, calls: number, rewards = 0, mean: number | null = null) => ({ at: `2026-03-01T00:0${place}:00Z`, calls, failed_calls: 0, trajectories: 0, rewards, mean_reward: mean });
const station = (loop: Partial<Loop>, name: string) => stations({ ...EMPTY, ...loop }).find((one) => one.name === name);

test("rates are those of the last minutes, and of the one that runs", () => {
  const minutes = [minute(0, 900), minute(1, 10), minute(2, 10), minute(3, 10, 1, 0.5), minute(4, 10, 3, 0.9), minute(5, 10), minute(6, 5)];
  assert.deepEqual(lately({ ...EMPTY, at: "2026-03-01T00:06:30Z", minutes }), { calls: 10, failed: 0, trajectories: 0, rewards: 4 / 5.5, mean: 0.8 });
});

test("a first call is seen at once", () => {
  assert.equal(lately({ ...EMPTY, at: "2026-03-01T00:00:02Z", minutes: [minute(0, 1)] }).calls, 1);
});

test("an installation in which nothing happened yet has all stations", () => {
  assert.deepEqual(stations(EMPTY).map((one) => [one.name, one.flow]), [
    ["Agents", 0], ["Gateway", 0], ["Stream", 0], ["Rewards", 0], ["Jobs", 0], ["Gate", 0], ["Canary", 0], ["Routes", 0],
  ]);
});

test("a loss is louder than lag", () => {
  const row = { stream: "s", consumer: "c", watermark: 9, stored: 7, dead: 0, duplicate: 0, erased: 0, lost: 1, missing: 1, absent: 0 };
  assert.equal(station({ ledger: [row] }, "Stream")?.detail, "2 messages unaccounted for");
  assert.equal(station({ ledger: [row] }, "Stream")?.tone, "bad");
});

test("what waits for a person is marked where it waits", () => {
  const role = { role: "support", stable: null, canary: null, weight: null, rollout: "awaiting_approval", active_jobs: 0, since_last_training: null, threshold: null };
  assert.equal(station({ roles: [role] }, "Gate")?.state, "waits for a person");
  assert.equal(station({ roles: [{ ...role, rollout: "held", canary: "support@2" }] }, "Canary")?.state, "held");
  assert.equal(station({ roles: [role, { ...role, rollout: "suspended" }] }, "Canary")?.tone, "bad");
});

test("a service that is away is marked at its station", () => {
  const services: Loop["services"] = [{ name: "deployer", state: "away", reason: "refused", notes: {} }];
  assert.equal(station({ services }, "Routes")?.state, "away");
});

test("everything that needs a person leads to where they act", () => {
  const one = (kind: string, subject: string | null = null) => ({ kind, role: "support", subject }) as Attention;
  assert.equal(actFor(one("approval")).link, "#/rollouts/support");
  assert.equal(actFor(one("job", "j1")).link, "#/training/j1");
  assert.equal(actFor(one("lag")).link, "#/?focus=streams");
  assert.equal(actFor({ ...one("alert", "gap"), role: "support" }).link, "#/rollouts/support");
  assert.equal(actFor(one("service")).link, "#/?focus=services");
});
