import assert from "node:assert/strict";
import { test } from "node:test";
import type { Hint } from "../src/api/types.ts";
import { NONE_SEEN, numberOf, seenAfter } from "../src/views/trajectories/fresh.ts";

function hint(members: Partial<Hint>): Hint {
  return { kind: "trajectory", role: "support", subject: null, at: "2026-03-01T12:00:00Z", text: "a trajectory of support ended", count: 1, ...members };
}

function seen(role: string, ...hints: Hint[]): number {
  return numberOf(hints.reduce((before, one) => seenAfter(before, one, role), NONE_SEEN));
}

test("hints without a subject are counted by their number", () => {
  assert.equal(seen("", hint({}), hint({ count: 3 }), hint({ role: null, count: 7 })), 11);
  assert.equal(seen("", hint({ subject: "a" }), hint({ subject: "a" }), hint({ subject: "b" })), 2);
});

test("other kinds and other roles are not counted", () => {
  assert.equal(seen("support", hint({ role: "triage" }), hint({ kind: "reward", subject: "a" })), 0);
  assert.equal(seen("support", hint({ role: null, count: 7 }), hint({})), 8);
});
