// A plan as a picture: where each sub-task stands, and the lines between them. Nothing here touches the page.

import type { WorkflowsSchemas } from "../../api/types.ts";

export type Workflow = WorkflowsSchemas["WorkflowOut"];

export const BOX = { width: 208, height: 76 } as const;
const GAP = { across: 56, down: 16 } as const;
const EDGE = 8;

export interface Box {
  readonly index: number;
  readonly x: number;
  readonly y: number;
}

export interface Drawing {
  readonly width: number;
  readonly height: number;
  readonly boxes: readonly Box[];
  /** Paths of SVG, from a sub-task to one that waits for it. */
  readonly lines: readonly string[];
}

/** One column for all that may run at the same time; in a column in the order of what they wait for. */
export function draw(dependencies: readonly (readonly number[])[]): Drawing {
  const levels: number[] = [];
  for (const [index, before] of dependencies.entries()) {
    levels.push(Math.max(-1, ...before.filter((each) => each < index).map((each) => levels[each] ?? 0)) + 1);
  }
  const rows: number[] = [];
  const columns: number[][] = [];
  for (let level = 0; level <= Math.max(-1, ...levels); level += 1) {
    const middle = (index: number) => mean((dependencies[index] ?? []).map((each) => rows[each] ?? 0));
    const column = levels.flatMap((each, index) => (each === level ? [index] : []));
    column.sort((one, other) => middle(one) - middle(other) || one - other);
    for (const [place, index] of column.entries()) rows[index] = place;
    columns.push(column);
  }
  const tallest = Math.max(0, ...columns.map((column) => column.length));
  const boxes = levels.map((level, index) => ({
    index,
    x: EDGE + level * (BOX.width + GAP.across),
    y: EDGE + ((rows[index] ?? 0) + (tallest - (columns[level]?.length ?? 0)) / 2) * (BOX.height + GAP.down),
  }));
  return {
    width: 2 * EDGE + columns.length * BOX.width + Math.max(0, columns.length - 1) * GAP.across,
    height: 2 * EDGE + tallest * BOX.height + Math.max(0, tallest - 1) * GAP.down,
    boxes,
    lines: dependencies.flatMap((before, index) => before.flatMap((each) => line(boxes[each], boxes[index]))),
  };
}

function line(from: Box | undefined, to: Box | undefined): string[] {
  if (from === undefined || to === undefined) return [];
  const [x, y, end, below] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
  const bend = GAP.across / 2;
  return [`M${x} ${y}C${x + bend} ${y} ${end - bend} ${below} ${end} ${below}`];
}

function mean(numbers: readonly number[]): number {
  return numbers.length === 0 ? 0 : numbers.reduce((sum, each) => sum + each, 0) / numbers.length;
}

const OVER = new Set(["succeeded", "partial", "failed", "cancelled"]);

/** Whether nothing of it goes on. */
export function isOver(workflow: Pick<Workflow, "state">): boolean {
  return OVER.has(workflow.state);
}

/** The share of its budget that is spent or reserved. */
export function used(workflow: Pick<Workflow, "budget_usd" | "cost_usd" | "reserved_usd">): number {
  return workflow.budget_usd > 0 ? (workflow.cost_usd + workflow.reserved_usd) / workflow.budget_usd : 0;
}

/** What readers of the page hear in the place of the picture. */
export function inWords(workflow: Workflow): string {
  const parts = (workflow.plan?.sub_tasks ?? []).map((each, index) => {
    const after = (each.depends_on ?? []).map((before) => before + 1).join(" and ");
    return `${index + 1}, ${each.task_type.replaceAll("_", " ")}${after === "" ? "" : `, after ${after}`}: ${workflow.sub_tasks[index]?.state ?? "waiting"}`;
  });
  return `${parts.length} sub-tasks. ${parts.join(". ")}.`;
}
