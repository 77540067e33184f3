import assert from "node:assert/strict";
import { test } from "node:test";
import { partsOf } from "../src/views/alignment/pairs_file.ts";

test("a file is cut between lines, and each part knows how many lines stand before it", () => {
  assert.deepEqual(partsOf("a\nbb\ncc\nd", 5), [{ before: 0, lines: "a\nbb" }, { before: 2, lines: "cc\nd" }]);
});

test("a line that is longer than a part is a part of its own", () => {
  assert.deepEqual(partsOf("a\nlonger\nb\n", 4), [{ before: 0, lines: "a" }, { before: 1, lines: "longer" }, { before: 2, lines: "b\n" }]);
});

test("no line is lost at the size of a real part", () => {
  const text = Array.from({ length: 3_000 }, (_, n) => `{"n": ${n}, "text": "${"x".repeat(400)}"}`).join("\n");
  const parts = partsOf(text);
  assert.ok(parts.length > 1);
  assert.equal(parts.map((part) => part.lines).join("\n"), text);
});
