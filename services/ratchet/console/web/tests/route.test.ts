import assert from "node:assert/strict";
import { test } from "node:test";
import { href, parseRoute } from "../src/route.ts";

test("an address and its route are two forms of one thing", () => {
  const link = href("rollouts", "sup/port ü", { tab: "a&b=c", none: null, empty: "" });
  assert.equal(link, "#/rollouts/sup%2Fport%20%C3%BC?tab=a%26b%3Dc");
  assert.deepEqual(parseRoute(link), { parts: ["rollouts", "sup/port ü"], params: { tab: "a&b=c" } });
});

test("home has no parts", () => {
  for (const hash of ["", "#", "#/"]) assert.deepEqual(parseRoute(hash), { parts: [], params: {} });
  assert.deepEqual(parseRoute(href({ focus: "services" })), { parts: [], params: { focus: "services" } });
});

test("an address with a broken escape is a route all the same", () => {
  assert.deepEqual(parseRoute("#/a/%zz?x"), { parts: ["a", "%zz"], params: { x: "" } });
});
