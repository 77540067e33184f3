import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, bytes, count, duration, measure, share, shortId, signed, signedShare, visible } from "../src/format.ts";

test("counts keep three digits", () => {
  assert.deepEqual([0, 7, 9412, 41_200, 3_140_000].map(count), ["0", "7", "9,412", "41.2k", "3.14M"]);
});

test("a measured number keeps its significant digits, however small or large", () => {
  const values = [0, 0.01234, 1.2345e-7, 431.26, 1234.5, 2.5e12].map((value) => measure(value));
  assert.deepEqual(values, ["0", "0.0123", "1.2e-7", "431", "1,235", "2.5e12"]);
  assert.equal(measure(null), "–");
  assert.equal(measure(Infinity), "Infinity");
});

test("a difference shows its sign", () => {
  assert.deepEqual([0.12, -0.03, 0].map((value) => signed(value)), ["+0.120", "−0.030", "±0"]);
  assert.deepEqual([0.12, -0.2, 0].map((value) => signedShare(value)), ["+12 %", "−20 %", "±0 %"]);
});

test("shares are per cent", () => {
  assert.deepEqual([0, 0.1234, 1].map(share), ["0 %", "12.3 %", "100 %"]);
});

test("a duration has its two largest units", () => {
  const texts = [0.34, 7.25, 59.6, 185, 3600, 7810, 359_999].map(duration);
  assert.deepEqual(texts, ["340 ms", "7.3 s", "1 min", "3 min 5 s", "1 h", "2 h 10 min", "4 d 3 h"]);
});

test("an instant is so long ago, or to come", () => {
  const now = Date.parse("2026-03-01T12:00:00Z");
  assert.equal(ago("2026-03-01T11:59:59.500Z", now), "now");
  assert.equal(ago("2026-03-01T11:58:30Z", now), "1 min ago");
  assert.equal(ago("2026-03-01T14:30:00Z", now), "in 2 h");
  assert.equal(ago("not a time", now), "not a time");
});

test("bytes have a unit", () => {
  assert.deepEqual([812, 4_120_000, 1e9].map(bytes), ["812 B", "4.12 MB", "1 GB"]);
});

test("a long id shows its beginning and its end", () => {
  assert.equal(shortId("short"), "short");
  assert.equal(shortId("0123456789abcdef0123"), "01234567…0123");
});

test("characters that one would not see are pieces with their names", () => {
  assert.deepEqual(visible("a\u001b[31m"), [{ text: "a" }, { text: "‹U+001B›", name: "U+001B" }, { text: "[31m" }]);
  assert.deepEqual(visible("\u202eevil"), [{ text: "‹U+202E›", name: "U+202E" }, { text: "evil" }]);
  assert.deepEqual(visible("\u{e0041}"), [{ text: "‹U+E0041›", name: "U+E0041" }]);
  assert.deepEqual(visible("tab\tand\nline"), [{ text: "tab\tand\nline" }]);
  assert.deepEqual(visible("<script>"), [{ text: "<script>" }]);
});
