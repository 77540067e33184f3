import assert from "node:assert/strict";
import { test } from "node:test";
import { answering, compared, partsOf, placeholders, type Bundle } from "../src/parts/bundle.ts";

const NOTHING = {} as Bundle;
const WHOLE = {
  model: { name: "small", upstream: "openai" },
  instructions: { text: "Be brief.", mode: "append", variables: ["shop"] },
  tools: { refund: { description: "Pay back.", parameters: { sum: "In euros." } }, delete: { hidden: true } },
  examples: [{ role: "user", content: "hi" }, { role: "assistant", content: "hello" }],
  defaults: { temperature: 0.2 }, overrides: { max_tokens: 50 },
  response_format: { type: "json_schema", json_schema: { b: 1, a: 2 } },
} as unknown as Bundle;

test("a bundle is read part by part", () => {
  assert.deepEqual(partsOf(WHOLE).map((part) => `${part.name}: ${part.words}`), [
    "who answers: openai/small",
    "instructions: after the agent's; need shop of the request",
    "tool delete: hidden from the model",
    "tool refund: describes the tool, sum",
    "examples: 2 messages after the instructions",
    "sampling: 2 of its values",
    "response format: in place of the agent's: json_schema",
  ]);
  assert.deepEqual(partsOf(WHOLE).slice(3, 6).map((part) => part.text), ["Pay back.\nsum: In euros.", "user: hi\nassistant: hello", "temperature: 0.2, unless the agent sets it\nmax_tokens: 50, whatever the agent sets"]);
});

test("a bundle without a part leaves it as agents send it", () => {
  assert.deepEqual(partsOf(NOTHING).map((part) => part.words), ["what answers without it"]);
  assert.equal(answering({ model: { name: "support@3-9be2d410", digest: "d" } } as Bundle), "support@3-9be2d410");
});

test("a planner's bundle has the planner alone, and another file is a change", () => {
  const [one, other] = ["a", "b"].map((digit) => ({ planner: { uri: "s3://x", sha256: digit.repeat(64) } }) as unknown as Bundle) as [Bundle, Bundle];
  assert.deepEqual(partsOf(one).map((part) => `${part.name}: ${part.words}`), ["planner: plans workflows and chooses workers: the file aaaaaaaaaaaa"]);
  assert.deepEqual(compared(one, other).changes.map((change) => change.name), ["planner"]);
});

test("two bundles differ in parts", () => {
  const other = { ...WHOLE, instructions: { text: "Be polite.", mode: "append", variables: ["shop"] }, examples: [] } as unknown as Bundle;
  const { changes, same } = compared(other, WHOLE);
  assert.deepEqual(changes.map((one) => [one.name, one.before?.text ?? null, one.after?.text ?? null]), [["instructions", "Be polite.", "Be brief."], ["examples", null, "user: hi\nassistant: hello"]]);
  assert.deepEqual(same, ["who answers", "tool delete", "tool refund", "sampling", "response format"]);
  assert.deepEqual(compared(NOTHING, NOTHING).changes, []);
});

test("the order of a format's members is no difference", () => {
  const other = { ...WHOLE, response_format: { json_schema: { a: 2, b: 1 }, type: "json_schema" } } as unknown as Bundle;
  assert.deepEqual(compared(WHOLE, other).changes, []);
});

test("every second piece of a template is a placeholder", () => {
  assert.deepEqual(placeholders("a {{instructions}} b {{ variables.shop }}"), ["a ", "{{instructions}}", " b ", "{{ variables.shop }}", ""]);
});
