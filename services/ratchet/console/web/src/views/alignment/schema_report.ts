// A `schema_report.json`, as `ratchet data argilla-export` writes it beside its data. Nothing here touches the page.

export interface SchemaReport {
  readonly total: number;
  readonly valid: number;
  readonly valid_ratio: number;
  readonly dropped: Readonly<Record<string, number>>;
  readonly splits: Readonly<Record<string, number>>;
  readonly parameters: Readonly<Record<string, unknown>>;
  readonly seed: number;
  readonly input: { readonly name: string; readonly sha256: string; readonly size: number };
  readonly redacted: Readonly<Record<string, number>>;
  readonly first_dropped: Readonly<Record<string, readonly { readonly number: number; readonly problem: string }[]>>;
}

/** Below this share the export fails; below the next one it warns. */
const LEAST = 0.9;
const ENOUGH = 0.95;

const MEANINGS: Readonly<Record<string, string>> = {
  malformed: "cannot be read as a record of two answers",
  unjudged: "two answers, and no majority for one",
  empty: "a prompt or an answer is empty",
  identical: "both answers are the same",
  too_short: "the prompt is too short",
  too_long: "the prompt is too long",
  duplicate: "seen before",
};

/** The report in a file's text. Throws `Error` with what is wrong with it. */
export function parseReport(text: string): SchemaReport {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (!isObject(value)) throw new Error("This file holds no report: it is no JSON object.");
  const report = { redacted: {}, first_dropped: {}, ...value } as Record<string, unknown>;
  const wrong = [
    ...["total", "valid", "valid_ratio", "seed"].filter((name) => typeof report[name] !== "number"),
    ...["dropped", "splits", "redacted"].filter((name) => !isCounts(report[name])),
    ...["parameters", "input"].filter((name) => !isObject(report[name])),
    ...(isFirst(report["first_dropped"]) ? [] : ["first_dropped"]),
  ];
  const input = report["input"];
  if (isObject(input) && (typeof input["name"] !== "string" || typeof input["sha256"] !== "string" || typeof input["size"] !== "number")) wrong.push("input");
  if (wrong.length > 0) throw new Error(`This file is no schema_report.json: look at ${wrong.join(", ")}.`);
  return report as unknown as SchemaReport;
}

export function verdict(report: SchemaReport): { readonly tone: "good" | "warn" | "bad"; readonly text: string } {
  if (report.total === 0) return { tone: "bad", text: "There was no record to read." };
  if (report.valid_ratio < LEAST) return { tone: "bad", text: "Less than 90 % of the records are valid: the export counts as failed." };
  if (report.valid_ratio < ENOUGH) return { tone: "warn", text: "Less than 95 % of the records are valid: look at what was dropped." };
  return { tone: "good", text: "At least 95 % of the records are valid." };
}

export interface DroppedLine {
  readonly reason: string;
  readonly meaning: string;
  readonly count: number;
  readonly first: readonly { readonly number: number; readonly problem: string }[];
}

/** What was dropped, the most first. */
export function droppedLines(report: SchemaReport): DroppedLine[] {
  return Object.entries(report.dropped).filter(([, count]) => count > 0).sort(([, a], [, b]) => b - a)
    .map(([reason, count]) => ({ reason, meaning: MEANINGS[reason] ?? reason, count, first: report.first_dropped[reason] ?? [] }));
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isCounts(value: unknown): boolean {
  return isObject(value) && Object.values(value).every((one) => typeof one === "number");
}

function isFirst(value: unknown): boolean {
  const isRecord = (one: unknown) => isObject(one) && typeof one["number"] === "number" && typeof one["problem"] === "string";
  return isObject(value) && Object.values(value).every((list) => Array.isArray(list) && list.every(isRecord));
}
