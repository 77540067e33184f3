import assert from "node:assert/strict";
import { test } from "node:test";
import { callFacts, likelihood, pretty, speaker, tokensSummary, tokenText, type Call, type Message, type Token } from "../src/parts/conversation.ts";

const MESSAGE: Message = { index: 0, role: "assistant", text: "", letters: 0, tool_calls: [], tool_call_id: null, turn_id: null };
const TOKEN: Token = { text: "a", id: 7, logprob: -0.1, learns: true };

test("arguments that are JSON get their lines, anything else stays", () => {
  assert.equal(pretty('{"a":[1]}'), '{\n  "a": [\n    1\n  ]\n}');
  assert.deepEqual(["{broken", "plain", "12"].map(pretty), ["{broken", "plain", "12"]);
});

test("a tool's answer names the call that it answers", () => {
  const call = { ...MESSAGE, tool_calls: [{ id: "c1", name: "find", arguments: "{}", letters: 2 }] };
  const answer = { ...MESSAGE, role: "tool", tool_call_id: "c1" };
  assert.equal(speaker(answer, [call, answer]), "find answers");
  assert.equal(speaker({ ...answer, tool_call_id: "other" }, [call, answer]), "tool");
});

test("a call's unknown figures are left out", () => {
  const call: Call = {
    turn_id: "t", index: 0, at: "2026-03-01T12:00:00Z", policy: "a@1", arm: "canary", model: null, engine: "local", latency_ms: 1234, first_token_ms: null,
    prompt_tokens: 12, completion_tokens: null, cost_usd: 0.002, finish_reason: "length", error: null, has_tokens: false, applied_by: "none", is_changed: false, learns: false, why_not: null, remedy: null,
  };
  assert.deepEqual(callFacts(call), ["canary", "bundle not applied by its agent", "1.2 s", "12 tokens in, ? out", "$0.002", "ended by length"]);
  assert.deepEqual(callFacts({ ...call, arm: "stable", applied_by: "gateway", latency_ms: null, prompt_tokens: null, cost_usd: null, finish_reason: "stop" }), []);
});

test("a token's class is that of its probability", () => {
  const names = [-0.01, -0.2, -1.5, -9, 0].map((logprob) => likelihood({ ...TOKEN, logprob })?.name);
  assert.deepEqual(names, ["sure", "likely", "unsure", "surprising", "sure"]);
  assert.equal(likelihood({ ...TOKEN, logprob: null }), null);
});

test("a token without a text shows its number", () => {
  assert.deepEqual([tokenText(TOKEN), tokenText({ ...TOKEN, text: "" })], ["a", "⟨7⟩"]);
});

test("tokens are summed up in a sentence", () => {
  assert.equal(tokensSummary([TOKEN, { ...TOKEN, logprob: -0.3, learns: false }], 9), "2 of 9 tokens; 1 learns; mean log-probability -0.2");
  assert.equal(tokensSummary([{ ...TOKEN, logprob: null }], 1), "1 token; all learn; no log-probabilities");
});
