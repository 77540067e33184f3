import assert from "node:assert/strict";
import { test } from "node:test";
import { domainOf, linearTicks, nearest, scale, timeTicks } from "../src/charts/scale.ts";

test("ticks are round numbers within the axis", () => {
  assert.deepEqual(linearTicks([0, 1], 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(linearTicks([-3, 12], 4), [0, 5, 10]);
});

test("ticks of time are about as many as asked for, and whole", () => {
  const hour = 3_600_000;
  const ticks = timeTicks([0, 6 * hour], 6);
  assert.ok(ticks.length <= 7 && ticks.length >= 4);
  assert.ok(ticks.every((tick) => tick % (hour / 2) === 0));
});

test("a log axis holds all values, and clamps what it cannot show", () => {
  const domain = domainOf([0.02, 430, 0, -1], "log");
  assert.deepEqual(domain, [0.01, 1000]);
  const log = scale("log", domain, [100, 0], 10);
  assert.deepEqual(log.ticks, [0.01, 0.1, 1, 10, 100, 1000]);
  assert.equal(log.at(0), 100);
  assert.equal(log.at(1000), 0);
});

test("an axis of one value, or of none, has a length", () => {
  for (const kind of ["linear", "log", "time"] as const) {
    for (const values of [[], [0], [5], [5, 5]]) {
      const [low, high] = domainOf(values, kind);
      assert.ok(high > low, `${kind} of ${values}`);
    }
  }
});

test("an axis of counts begins at 0, not below", () => {
  assert.equal(domainOf([0, 50], "linear")[0], 0);
  assert.ok(domainOf([-1, 50], "linear")[0] < -1);
});

test("the nearest point is on either side", () => {
  assert.deepEqual([-5, 0, 4, 6, 99].map((x) => nearest([0, 5, 10], x)), [0, 0, 1, 1, 2]);
});
