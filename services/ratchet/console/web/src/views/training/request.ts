// The form of a training, and the request that it makes. Nothing here touches the page.

import type { Job } from "../../parts/jobs.ts";

/** The fields of the form, as texts. */
export interface Draft {
  readonly role: string;
  readonly algorithm: string;
  readonly base_model: string;
  readonly sample_size: string;
  readonly min_reward: string;
  readonly since: string;
  readonly learning_rate: string;
  readonly epochs: string;
  readonly batch_size: string;
  readonly max_steps: string;
  readonly beta: string;
  readonly seed: string;
  /** Number format of the computation; empty: the worker's. */
  readonly precision: string;
  readonly priority: string;
  readonly notes: string;
  /** Further hyperparameters, as a JSON object. */
  readonly more: string;
}

type Json = { readonly [name: string]: unknown };

export const EMPTY: Draft = {
  role: "", algorithm: "auto", base_model: "stable", sample_size: "", min_reward: "", since: "", learning_rate: "", epochs: "", batch_size: "",
  max_steps: "", beta: "", seed: "", precision: "", priority: "normal", notes: "", more: "",
};
const NUMBERS = ["learning_rate", "epochs", "batch_size", "max_steps", "beta", "seed"] as const;
const WHOLE = new Set(["epochs", "batch_size", "max_steps", "seed", "sample_size"]);

/** A request, or what is wrong with the form, by its field. */
export function requestOf(draft: Draft, same: Json | null, key: string): { readonly body: Json } | { readonly wrong: Readonly<Record<string, string>> } {
  const wrong: Record<string, string> = {};
  if (draft.role === "") wrong["role"] = "Choose the role to train.";
  const number = (name: (typeof NUMBERS)[number] | "sample_size" | "min_reward") => {
    if (draft[name].trim() === "") return undefined;
    const value = Number(draft[name]);
    if (!Number.isFinite(value)) wrong[name] = "This is no number.";
    else if (WHOLE.has(name) && !Number.isInteger(value)) wrong[name] = "This is a whole number.";
    return value;
  };
  const more = moreOf(draft.more, wrong);
  const hyperparameters = { ...more, ...Object.fromEntries(NUMBERS.map((name) => [name, number(name)])) };
  const [sample_size, min_reward] = [number("sample_size"), number("min_reward")];
  const filter = { min_reward, ...(draft.since === "" ? {} : { date_range: { start: draft.since } }) };
  const dataset = same === null ? { sample_size, filter } : { ...same, sample_size: sample_size ?? same["sample_size"] };
  if (Object.keys(wrong).length > 0) return { wrong };
  return {
    body: kept({
      role: draft.role, algorithm: draft.algorithm, base_model: draft.base_model, priority: draft.priority, requester: "console",
      notes: draft.notes === "" ? undefined : draft.notes, idempotency_key: key, dataset, hyperparameters,
      compute: { mixed_precision: draft.precision || undefined },
    }) as Json,
  };
}

function moreOf(text: string, wrong: Record<string, string>): Json {
  if (text.trim() === "") return {};
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Json;
  } catch {
    // Said below, with what it should be.
  }
  wrong["more"] = 'This is no JSON object, such as {"kl_beta": 0.01}.';
  return {};
}

/** A value without what is not set: members that are null or undefined, and objects that have none left. */
export function kept(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(kept);
  if (typeof value !== "object" || value === null) return value;
  const members = Object.entries(value).map(([name, inner]) => [name, kept(inner)] as const)
    .filter(([, inner]) => inner !== null && inner !== undefined && !(typeof inner === "object" && !Array.isArray(inner) && Object.keys(inner as object).length === 0));
  return Object.fromEntries(members);
}

/** The form as an earlier job was asked for, on exactly its data where that was chosen. */
export function draftAgain(job: Job): { readonly draft: Draft; readonly same: Json | null } {
  const config = kept(job.request.training_config) as { hyperparameters?: Json; dataset?: Json; compute?: { mixed_precision?: string } };
  const hyper = config.hyperparameters ?? {};
  const known = Object.fromEntries(NUMBERS.map((name) => [name, hyper[name] === undefined ? "" : String(hyper[name])]));
  const rest = Object.fromEntries(Object.entries(hyper).filter(([name]) => !(NUMBERS as readonly string[]).includes(name)));
  const filter = config.dataset?.["filter"] as { min_reward?: number; date_range?: { start?: string } } | undefined;
  const size = config.dataset?.["sample_size"];
  const draft = {
    ...EMPTY, ...known, precision: config.compute?.mixed_precision ?? "", role: job.role, algorithm: job.algorithm, priority: job.priority, base_model: job.request.training_config.base_model,
    sample_size: size === undefined ? "" : String(size), min_reward: filter?.min_reward === undefined ? "" : String(filter.min_reward),
    since: filter?.date_range?.start ?? "", more: Object.keys(rest).length === 0 ? "" : JSON.stringify(rest), notes: `again: ${job.training_job_id}`,
  };
  const same = job.snapshot == null ? null : { sample_size: size, snapshot: { uri: job.snapshot.uri, digest: job.snapshot.digest } };
  return { draft, same };
}
