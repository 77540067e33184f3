// What a conversation says of itself beside its texts. Nothing here touches the page.

import type { ConsoleSchemas } from "../api/types.ts";
import { dollars, duration, measure, plural } from "../format.ts";

export type Message = ConsoleSchemas["MessageOut"];
export type Call = ConsoleSchemas["CallOut"];
export type Token = ConsoleSchemas["TokenOut"];

const INDENTED = 100_000;

/** Arguments of a tool as one reads them: JSON with its lines, anything else as it is. */
export function pretty(text: string): string {
  if (text.length > INDENTED || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Who speaks: the role, and for an answer of a tool which call it answers. */
export function speaker(message: Message, messages: readonly Message[]): string {
  if (message.role !== "tool") return message.role;
  const call = messages.flatMap((one) => one.tool_calls).find((one) => one.id !== null && one.id === message.tool_call_id);
  return call === undefined ? "tool" : `${call.name} answers`;
}

/** What wrote the policy's bundle into a request, where that was not the gateway. */
const APPLIED: Readonly<Record<string, string>> = { agent: "bundle applied by its agent", none: "bundle not applied by its agent" };

/** A call's figures in words, those that are known. */
export function callFacts(call: Call): string[] {
  const tokens = call.prompt_tokens === null && call.completion_tokens === null ? null
    : `${call.prompt_tokens ?? "?"} tokens in, ${call.completion_tokens ?? "?"} out`;
  const facts = [
    call.arm === "stable" ? null : call.arm,
    APPLIED[call.applied_by ?? ""] ?? null,
    call.latency_ms === null ? null : duration(call.latency_ms / 1000),
    call.first_token_ms === null ? null : `first token after ${duration(call.first_token_ms / 1000)}`,
    tokens,
    call.cost_usd === null ? null : dollars(call.cost_usd),
    call.finish_reason === null || call.finish_reason === "stop" ? null : `ended by ${call.finish_reason}`,
  ];
  return facts.filter((fact) => fact !== null);
}

/** How likely a token was to the policy that drew it; the classes of the legend. */
export interface Likelihood {
  readonly name: string;
  /** The least probability. */
  readonly least: number;
  readonly text: string;
}

export const LIKELIHOODS: readonly Likelihood[] = [
  { name: "sure", least: 0.9, text: "90 % or more" },
  { name: "likely", least: 0.5, text: "50 to 90 %" },
  { name: "unsure", least: 0.1, text: "10 to 50 %" },
  { name: "surprising", least: 0, text: "below 10 %" },
];

/** The class of a token; null without a log-probability. */
export function likelihood(token: Token): Likelihood | null {
  if (token.logprob === null) return null;
  const probability = Math.exp(token.logprob);
  return LIKELIHOODS.find((one) => probability >= one.least) ?? LIKELIHOODS.at(-1) ?? null;
}

/** What a token stands for on the page: its text, or its number where no tokenizer is known. */
export function tokenText(token: Token): string {
  return token.text === "" ? `⟨${token.id}⟩` : token.text;
}

export function tokenTitle(token: Token): string {
  const logprob = token.logprob;
  const chance = logprob === null ? "no log-probability" : `log-probability ${measure(logprob)}, ${measure(Math.exp(logprob) * 100)} %`;
  return `id ${token.id}, ${chance}, ${token.learns ? "learns" : "does not learn"}`;
}

/** The tokens that were read so far, in a sentence. */
export function tokensSummary(tokens: readonly Token[], total: number): string {
  const known = tokens.flatMap((token) => (token.logprob === null ? [] : [token.logprob]));
  const learning = tokens.filter((token) => token.learns).length;
  const mean = known.length === 0 ? null : known.reduce((sum, one) => sum + one, 0) / known.length;
  const shown = tokens.length < total ? `${tokens.length} of ${plural(total, "token")}` : plural(total, "token");
  const surprise = mean === null ? "no log-probabilities" : `mean log-probability ${measure(mean)}`;
  return `${shown}; ${learning === tokens.length ? "all learn" : learning === 0 ? "none learns" : `${learning} ${learning === 1 ? "learns" : "learn"}`}; ${surprise}`;
}
