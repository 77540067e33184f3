// Policies, their lineage and their answers as pages show them. Nothing here touches the page.

import type { CoordinatorSchemas, Model } from "../../api/types.ts";
import { words } from "../../format.ts";
import { suiteRows } from "../rollouts/evidence.ts";

export type Lineage = CoordinatorSchemas["LineageOut"];

/** Roles in the order of the alphabet, each with its versions, newest first. */
export function byRole(models: readonly Model[]): readonly (readonly [string, readonly Model[]])[] {
  const roles = Map.groupBy(models, (model) => model.role);
  return [...roles].sort(([a], [b]) => a.localeCompare(b)).map(([role, versions]) => [role, versions.toSorted((a, b) => b.version - a.version)]);
}

/** The two to begin with: that version, or the newest of a role, and what serves the role, or another of its versions. */
export function pair(models: readonly Model[], role: string | undefined, version: number): { left: string; right: string } {
  const versions = byRole(models).find(([name, all]) => name === role || (role === undefined && all.length > 1))?.[1] ?? models;
  const left = versions.find((model) => model.version === version) ?? versions[0];
  const others = versions.filter((model) => model !== left);
  const right = others.find((model) => model.stage === "production") ?? others[0];
  return { left: left?.name ?? "", right: right?.name ?? "" };
}

/** What it is, and what it was made from; of a bundle, who answers. */
export function kindOf(model: Model): string {
  return model.kind === "bundle" ? `bundle, ${answers(model)}` : `${model.kind} on ${model.base_model}`;
}

/** Who answers for a bundle. */
export function answers({ version, base_model: name }: Model): string {
  if (version === 0) return "calls as agents send them";
  return name === "" ? "names no model" : `answered by ${name}`;
}

/** What a policy was made from; null of a bundle that was written anew. */
export function continued({ kind, parent }: Model): string | null {
  return parent != null ? `version ${parent}` : kind === "bundle" ? null : "the base model";
}

/** The version that one is compared with: stable, else the one before, else another one. */
export function beside(version: number, versions: readonly number[], stable: number | null): number | null {
  if (stable !== null && stable !== version) return stable;
  const others = versions.filter((each) => each !== version).sort((a, b) => b - a);
  return others.find((each) => each < version) ?? others[0] ?? null;
}

export interface GateRow {
  readonly gate: string;
  readonly outcome: string;
  readonly reason: string;
  readonly evidence: Readonly<Record<string, unknown>>;
}

/** The gates' results as the registry keeps them: by gate, or the evidence of a single one. */
export function gateRows(gate: Readonly<Record<string, unknown>> | null | undefined): GateRow[] {
  return Object.entries(gate ?? {}).map(([name, result]) => {
    if (typeof result !== "object" || result === null) return { gate: name, outcome: "", reason: String(result), evidence: {} };
    const { outcome, reason, evidence } = result as Record<string, unknown>;
    const figures = typeof evidence === "object" && evidence !== null ? evidence : {};
    return { gate: name, outcome: typeof outcome === "string" ? outcome : "", reason: typeof reason === "string" ? reason : "", evidence: figures as Record<string, unknown> };
  });
}

/** The card of a policy in plain text: what it is, what it learned from, how it was judged. */
export function card(lineage: Lineage): string {
  const { policy } = lineage;
  const lines = [
    `# ${policy.name}`, "",
    `Role ${policy.role}, version ${policy.version}, ${words(policy.state)}. A ${kindOf(policy)}.`,
    continued(policy) === null ? "It continues no other version." : `It continues ${continued(policy)}.`,
    `Made ${policy.created_at}. ${policy.uri === "" ? "" : `Manifest ${policy.uri}, `}sha256 ${policy.digest}.`, "",
    ...(isTrained(policy) ? learned(lineage) : []),
    "## Judged", "",
    ...gateRows(policy.gate).flatMap((row) => [
      `- ${words(row.gate)}: ${words(row.outcome)}. ${row.reason}`,
      ...suiteRows(row.evidence).map((one) => `  - ${one.suite}: stable ${one.stable}, candidate ${one.candidate}, difference ${one.difference}: ${one.verdict}`),
    ]),
    ...lineage.announcements.map((event) => `- ${event.at}: ${event.kind}${event.what == null ? "" : `, ${words(event.what)}`}`),
    ...(isTrained(policy) && lineage.missing.length > 0 ? ["", "## Not kept any more", "", ...lineage.missing.map((one) => `- ${one}`)] : []),
  ];
  return `${lines.join("\n")}\n`;
}

/** Whether it has a history of training: a bundle that a person wrote has none. */
export function isTrained({ kind, training_job_id: job }: Model): boolean {
  return kind !== "bundle" || job != null;
}

function learned({ policy, job, snapshot }: Lineage): string[] {
  return [
    "## Training", "",
    job == null ? `By ${policy.algorithm ?? "an unknown algorithm"}; the job is not kept any more.` : `By ${job.algorithm}, job ${job.training_job_id} (${job.state}), asked for by ${job.requester} (${words(job.trigger_reason)}).`,
    ...figures(policy.metrics ?? {}), "",
    "## Data", "",
    ...(snapshot == null ? ["The snapshot is not kept any more."] : [
      `${snapshot.rows.toLocaleString("en")} ${snapshot.format}, snapshot ${snapshot.digest}, rewards by ${snapshot.reward_function ?? "an unknown function"}.`,
      ...figures(snapshot.left_out ?? {}, "left out: "), ...figures(snapshot.raters ?? {}, "preferences by "),
    ]), "",
  ];
}

function figures(members: Readonly<Record<string, number>>, before = ""): string[] {
  return Object.entries(members).map(([name, value]) => `- ${before}${words(name)}: ${value}`);
}

/** The text of a chat completion, its tool calls included. */
export function answerText(completion: unknown): string {
  const message = (completion as { choices?: { message?: { content?: unknown; tool_calls?: { function?: { name?: string; arguments?: string } }[] } }[] }).choices?.[0]?.message;
  const calls = (message?.tool_calls ?? []).map((call) => `→ ${call.function?.name ?? "?"}(${call.function?.arguments ?? ""})`);
  const content = message?.content;
  return [typeof content === "string" ? content : content == null ? "" : JSON.stringify(content), ...calls].filter(Boolean).join("\n");
}
