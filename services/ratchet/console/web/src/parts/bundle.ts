// A bundle in parts, as people read them: what it changes of the calls that agents make. Nothing here touches the page.

import type { DeployerSchemas } from "../api/types.ts";

export type Bundle = DeployerSchemas["Bundle"];

export interface Part {
  readonly name: string;
  /** What it does, in a line. */
  readonly words: string;
  /** What the model reads there; null where there is nothing to read. */
  readonly text: string | null;
}

const UNNAMED = "what answers without it";

/** Who answers, by the name that policies have for it. */
export function answering(bundle: Bundle): string {
  const model = bundle.model;
  return model == null ? UNNAMED : model.upstream == null ? model.name : `${model.upstream}/${model.name}`;
}

/** In the order in which a request shows them. A bundle that changes nothing has only who answers. */
export function partsOf(bundle: Bundle): Part[] {
  const { instructions, examples = [], response_format: shape, planner } = bundle;
  if (planner != null) return [{ name: "planner", words: `plans workflows and chooses workers: the file ${planner.sha256.slice(0, 12)}`, text: null }];
  const parts: Part[] = [{ name: "who answers", words: answering(bundle), text: null }];
  if (instructions != null) parts.push({ name: "instructions", words: standing(instructions), text: instructions.text });
  for (const [name, tool] of Object.entries(bundle.tools ?? {}).sort(([a], [b]) => (a < b ? -1 : 1))) parts.push(toolPart(name, tool));
  if (examples.length > 0) parts.push({ name: "examples", words: `${examples.length} messages after the instructions`, text: examples.map((each) => `${each.role}: ${each.content}`).join("\n") });
  const sampling = [...values(bundle.defaults, "unless the agent sets it"), ...values(bundle.overrides, "whatever the agent sets")];
  if (sampling.length > 0) parts.push({ name: "sampling", words: `${sampling.length} of its values`, text: sampling.join("\n") });
  if (shape != null) parts.push({ name: "response format", words: `in place of the agent's: ${String(shape["type"])}`, text: JSON.stringify(sorted(shape), null, 2) });
  return parts;
}

function standing({ mode, variables = [] }: NonNullable<Bundle["instructions"]>): string {
  const where = mode === "prepend" ? "before" : mode === "append" ? "after" : "in the place of";
  return `${where} the agent's${variables.length > 0 ? `; need ${variables.join(", ")} of the request` : ""}`;
}

function toolPart(name: string, tool: NonNullable<Bundle["tools"]>[string]): Part {
  if (tool.hidden === true) return { name: `tool ${name}`, words: "hidden from the model", text: null };
  const parameters = Object.entries(tool.parameters ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
  const described = [...(tool.description == null ? [] : ["the tool"]), ...parameters.map(([parameter]) => parameter)];
  const lines = [...(tool.description == null ? [] : [tool.description]), ...parameters.map(([parameter, words]) => `${parameter}: ${words}`)];
  return { name: `tool ${name}`, words: described.length === 0 ? "as the agent describes it" : `describes ${described.join(", ")}`, text: lines.length === 0 ? null : lines.join("\n") };
}

function values(sampling: Bundle["defaults"], when: string): string[] {
  return Object.entries(sampling ?? {}).filter(([, value]) => value != null).map(([name, value]) => `${name}: ${String(value)}, ${when}`);
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, member]) => [name, sorted(member)]));
}

export interface Change {
  readonly name: string;
  readonly before: Part | null;
  readonly after: Part | null;
}

/** The parts that differ, and the names of those that both have alike. */
export function compared(before: Bundle, after: Bundle): { readonly changes: readonly Change[]; readonly same: readonly string[] } {
  const [old, fresh] = [before, after].map((bundle) => new Map(partsOf(bundle).map((part) => [part.name, part]))) as [Map<string, Part>, Map<string, Part>];
  const every = [...new Set([...fresh.keys(), ...old.keys()])].map((name) => ({ name, before: old.get(name) ?? null, after: fresh.get(name) ?? null }));
  const isSame = (one: Change) => one.before?.words === one.after?.words && one.before?.text === one.after?.text;
  return { changes: every.filter((one) => !isSame(one)), same: every.filter(isSame).map((one) => one.name) };
}

/** A template in pieces: every second one is a placeholder. */
export function placeholders(text: string): string[] {
  return text.split(/(\{\{[^{}]*\}\})/);
}
