import assert from "node:assert/strict";
import { test } from "node:test";
import { droppedLines, parseReport, verdict } from "../src/views/alignment/schema_report.ts";

const REPORT = {
  total: 200, valid: 186, valid_ratio: 0.93, seed: 42, parameters: { format: "trl" },
  dropped: { malformed: 2, unjudged: 0, empty: 0, identical: 4, too_short: 0, too_long: 0, duplicate: 8 },
  splits: { train: 167, eval: 9, test: 10 }, input: { name: "records.jsonl", sha256: "ab", size: 4096 },
  first_dropped: { identical: [{ number: 7, problem: "both are <b>the same</b>" }] },
};

test("a report is read with what it leaves out", () => {
  const report = parseReport(JSON.stringify(REPORT));
  assert.deepEqual(report.redacted, {});
  assert.deepEqual(droppedLines(report).map((line) => [line.reason, line.count, line.first.length]), [["duplicate", 8, 0], ["identical", 4, 1], ["malformed", 2, 0]]);
});

test("a report is judged as the command judges it", () => {
  assert.deepEqual([0.95, 0.93, 0.89].map((valid_ratio) => verdict({ ...parseReport(JSON.stringify(REPORT)), valid_ratio }).tone), ["good", "warn", "bad"]);
  assert.equal(verdict({ ...parseReport(JSON.stringify(REPORT)), total: 0, valid_ratio: 1 }).tone, "bad");
});

test("another file is refused, with what is wrong", () => {
  assert.throws(() => parseReport("no"), /not JSON/);
  assert.throws(() => parseReport("[]"), /no JSON object/);
  assert.throws(() => parseReport(JSON.stringify({ ...REPORT, total: "many", dropped: [1], first_dropped: { a: [1] } })), /total, dropped, first_dropped/);
  assert.throws(() => parseReport(JSON.stringify({ ...REPORT, input: { name: 1 } })), /input/);
});
