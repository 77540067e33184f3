import assert from "node:assert/strict";
import { test } from "node:test";
import { aligned, blocks, pieces, type Row } from "../src/parts/diff.ts";

const drawn = (rows: readonly Row[]) => rows.map(({ before, after }) => (before === after ? ` ${before}` : `${before ?? ""}|${after ?? ""}`));
const text = (...lines: string[]) => lines.join("\n");

test("equal lines stand beside each other, others come and go", () => {
  assert.deepEqual(drawn(aligned(text("a", "b", "c"), text("a", "c"))), [" a", "b|", " c"]);
  assert.deepEqual(drawn(aligned(text("a", "b", "c", "d"), text("x", "b", "d", "e"))), ["a|x", " b", "c|", " d", "|e"]);
  assert.deepEqual(drawn(aligned(text("a", "b"), text("a", "b"))), [" a", " b"]);
  assert.deepEqual(drawn(aligned(null, text("a", "b"))), ["|a", "|b"]);
});

test("each side gives its whole text, whatever the texts are", () => {
  let seed = 7;
  const lines = () => Array.from({ length: 12 }, () => "abcd"[(seed = (seed * 48_271) % 2_147_483_647) % 4]);
  for (let round = 0; round < 300; round++) {
    const [before, after] = [text(...lines() as string[]), text(...lines() as string[])];
    const rows = aligned(before, after);
    assert.equal(text(...rows.flatMap((row) => row.before ?? [])), before);
    assert.equal(text(...rows.flatMap((row) => row.after ?? [])), after);
  }
});

test("texts of 256 KB are compared in a moment, alike or not", () => {
  const lines = Array.from({ length: 128 * 1024 }, (_, at) => String(at % 7));
  const began = performance.now();
  const few = aligned(lines.join("\n"), ["first", ...lines.slice(0, 60_000), "new", ...lines.slice(60_000)].join("\n"));
  assert.equal(few.filter((row) => row.before !== row.after).length, 2);
  assert.equal(aligned(lines.join("\n"), lines.map((line) => `${line}!`).join("\n")).length, lines.length);
  assert.ok(performance.now() - began < 5_000);
});

test("what is equal far from a change is folded", () => {
  const lines = Array.from({ length: 20 }, (_, at) => `line ${at}`);
  const folded = blocks(aligned(text(...lines), text(...lines.with(10, "new"))));
  assert.deepEqual(folded.map((block) => ("rows" in block ? block.rows.length : -block.equal.length)), [-7, 7, -6]);
  assert.deepEqual(blocks([]), []);
});

test("in a line the words that differ are marked", () => {
  assert.deepEqual(pieces("Be brief, please.", "Be polite, please."), { before: ["Be ", "brief", ", please."], after: ["Be ", "polite", ", please."] });
  assert.deepEqual(pieces("a", "a b"), { before: ["", "a", ""], after: ["", "a b", ""] });
  assert.deepEqual(pieces("😀.", "😁.").before, ["", "😀", "."]);
});
