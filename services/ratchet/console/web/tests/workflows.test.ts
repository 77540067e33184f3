import assert from "node:assert/strict";
import { test } from "node:test";
import { BOX, draw, inWords, isOver, used, type Workflow } from "../src/views/workflows/graph.ts";

test("sub-tasks stand right of all that they wait for", () => {
  const plan = [[], [], [0, 1], [0], [2, 3]];
  const { boxes } = draw(plan);
  for (const [index, before] of plan.entries()) {
    for (const each of before) assert.ok((boxes[index]?.x ?? 0) >= (boxes[each]?.x ?? 0) + BOX.width);
  }
});

test("no box lies on another or outside the picture", () => {
  const plan = [[], [], [], [0, 2], [1], [3, 4], [0], [6, 5], [2]];
  const { boxes, width, height } = draw(plan);
  for (const one of boxes) {
    assert.ok(one.x >= 0 && one.y >= 0 && one.x + BOX.width <= width && one.y + BOX.height <= height);
    const over = boxes.filter((other) => other !== one && Math.abs(other.x - one.x) < BOX.width && Math.abs(other.y - one.y) < BOX.height);
    assert.deepEqual(over, []);
  }
});

test("each dependency is one line, from the end of a box to the start of another", () => {
  const { boxes, lines } = draw([[], [0], [0, 1]]);
  assert.equal(lines.length, 3);
  const [first] = boxes;
  assert.ok(lines[0]?.startsWith(`M${(first?.x ?? 0) + BOX.width} ${(first?.y ?? 0) + BOX.height / 2}C`));
});

test("an empty plan and one of strange dependencies are drawn all the same", () => {
  assert.deepEqual(draw([]).boxes, []);
  assert.equal(draw([[0], [7]]).boxes.length, 2);
  assert.ok(draw([[0], [7]]).boxes.every((box) => Number.isFinite(box.x) && Number.isFinite(box.y)));
});

test("what is reserved counts as used", () => {
  assert.equal(used({ budget_usd: 2, cost_usd: 0.5, reserved_usd: 0.5 }), 0.5);
  assert.equal(used({ budget_usd: 0, cost_usd: 0, reserved_usd: 0 }), 0);
  assert.deepEqual(["planning", "running", "succeeded", "partial", "failed", "cancelled"].filter((state) => isOver({ state } as Workflow)), ["succeeded", "partial", "failed", "cancelled"]);
});

test("readers of the page hear what the picture shows", () => {
  const workflow = { plan: { sub_tasks: [{ task_type: "text_extraction" }, { task_type: "summarization", depends_on: [0] }] }, sub_tasks: [{ state: "succeeded" }] } as unknown as Workflow;
  assert.equal(inWords(workflow), "2 sub-tasks. 1, text extraction: succeeded. 2, summarization, after 1: waiting.");
});
